"""The account of sampled tokens of captured agents: delivered + reasons = sampled.

A token is sampled if a call of `exchanges` has it in its answer. It is delivered if it is an action
token of a row that can be trained on: completed or truncated, with a reward, of the training split.
Any other sampled token is in a row that says why it is not: by its reason, or else its outcome,
`unscored` or `evaluation`. What drops a delivered token after its commit is an event.

The two sides come from different tables, so that a token which no row has, or which two rows have,
shows as a difference (`TokenAccount.missing`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from rollart_flow.text import counted
from rollart_flow.types import TRAINABLE, Split

if TYPE_CHECKING:
    from rollart_flow.store.snapshot import Tables

UNSCORED = "unscored"
"""Reason of the tokens of an attempt that could be trained on if it had a reward."""
EVALUATION = "evaluation"
"""Reason of the tokens of an attempt at a held-out task."""
_DELIVERED = "delivered"
_OUTCOMES = [str(outcome) for outcome in TRAINABLE]


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Sampled tokens of the captured attempts of a run, or of one of them."""

    attempts: int
    calls: int
    sampled: int
    delivered: int
    reasons: Mapping[str, int]
    """Tokens that are not delivered, by reason, the most frequent one first."""

    @property
    def fraction(self) -> float | None:
        """Delivered fraction of the sampled tokens; None if there are none."""
        return self.delivered / self.sampled if self.sampled else None

    @property
    def missing(self) -> int:
        """Sampled tokens that no row has; negative if rows have more. 0 without a defect."""
        return self.sampled - self.delivered - sum(self.reasons.values())

    def as_json(self) -> dict[str, Any]:
        """Return the account as a JSON value."""
        return {
            "attempts": self.attempts, "calls": self.calls, "sampled": self.sampled,
            "delivered": self.delivered, "fraction": self.fraction,
            "reasons": dict(self.reasons), "missing": self.missing,
        }  # fmt: skip

    def __str__(self) -> str:
        """Say the account in one line.

        Where no attempt has a reward, as of a gateway by hand, it says what could be delivered.
        """
        if not self.sampled:
            return "nothing was sampled"
        reasons = dict(self.reasons)
        unscored = 0 if self.delivered else reasons.pop(UNSCORED, 0)
        why = [f"{name} {count / self.sampled:.1%}" for name, count in reasons.items()]
        if self.missing:
            why.append(f"in no row {counted(self.missing, 'token')}")
        most = f"{(self.delivered or unscored) / self.sampled:.1%} of {self.sampled:,} sampled"
        first = f"{most} tokens lack only a reward" if unscored else f"delivered {most} tokens"
        return "; ".join([first, ", ".join(why)] if why else [first])


def _tokens_of_rows(exchanges: pl.LazyFrame, trajectories: pl.LazyFrame) -> dict[str, int]:
    """Return the sampled tokens of captured attempts that rows have, by reason.

    The reason is `delivered`, or why the tokens are not; the most frequent one is the first.
    """
    captured = exchanges.select("episode_id").unique()
    rows = trajectories.join(captured, on="episode_id", how="semi")
    length = pl.col("token_versions").list.len()
    counted = rows.unique("trajectory_id", keep="any").select(
        acting=pl.col("action_mask").list.sum().cast(pl.Int64),
        sampled=(length - pl.col("token_versions").list.count_matches(-1)).cast(pl.Int64),
        fate=_fate(),
        withheld=pl.col("reason").fill_null("withheld"),
    )
    acting = counted.select(reason="fate", tokens="acting")
    masked = pl.col("sampled") - pl.col("acting")
    withheld = counted.select(reason="withheld", tokens=masked)
    both = pl.concat([acting, withheld]).filter(pl.col("tokens") != 0)
    summed = both.group_by("reason").agg(pl.col("tokens").sum())
    return dict(summed.sort("tokens", "reason", descending=[True, False]).collect().iter_rows())


def _fate() -> pl.Expr:
    """Return the expression of what became of a row's action tokens."""
    return (
        pl.when(pl.col("split") != Split.TRAIN)
        .then(pl.lit(EVALUATION))
        .when(~pl.col("outcome").is_in(_OUTCOMES))
        .then(pl.coalesce("reason", "outcome"))
        .when(pl.col("reward").is_null())
        .then(pl.lit(UNSCORED))
        .otherwise(pl.lit(_DELIVERED))
    )


def token_account(tables: "Tables", episode_id: str | None = None) -> TokenAccount | None:
    """Return the account of all captured attempts, or of one of them; None if there is none."""
    exchanges = tables.exchanges
    if episode_id is not None:
        exchanges = exchanges.filter(pl.col("episode_id") == episode_id)
    if exchanges.head(1).collect().is_empty():
        return None
    length = (pl.col("answer_end") - pl.col("answer_start")).fill_null(0).cast(pl.Int64)
    calls = exchanges.unique(["episode_id", "number"], keep="any")
    asked = calls.select(
        attempts=pl.col("episode_id").n_unique(), calls=pl.len(), sampled=length.sum()
    ).collect()
    found = _tokens_of_rows(exchanges, tables.trajectories)
    delivered = found.pop(_DELIVERED, 0)
    return TokenAccount(**asked.row(0, named=True), delivered=delivered, reasons=found)
