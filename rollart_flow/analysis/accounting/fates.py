"""Fates of the attempts of a run, with their tokens and seconds.

Every row of `trajectories` has one fate; the tokens of all fates add up to those that were sampled.
"""

from typing import TYPE_CHECKING

import polars as pl

from rollart_flow.analysis.accounting.columns import FIRST, seconds_between, summed
from rollart_flow.analysis.delivery import EVALUATION, UNSCORED
from rollart_flow.types import TRAINABLE, EventKind, Outcome, Reason, Split

if TYPE_CHECKING:
    from rollart_flow.store.snapshot import Tables

TRAINED = "trained"
FILTERED = "filtered"
WAITING = "waiting"
"""Fate of what can be trained on, and no batch has held so far."""
WITHHELD = "withheld"
"""Fate of rows of an attempt whose tokens are not trained on, whatever became of the others."""

_TRAINABLE = [str(outcome) for outcome in TRAINABLE]
_LEFT = [str(EventKind.DROP), str(EventKind.EVICT)]
_BY_REASON = {
    str(Reason.STALENESS_BOUND): str(Outcome.STALE),
    str(Reason.GROUP_EVICTED): str(Outcome.STALE),
    str(Reason.GROUP_COMPLETE): str(Outcome.REDUNDANT),
    str(Reason.FILTERED): FILTERED,
    str(Reason.GROUP_FILTERED): FILTERED,
    str(Reason.RUN_STOPPED): str(Outcome.CANCELLED),
}
"""Fates of what left the buffer untrained, by reason; others are fates of their own."""
_BY_OUTCOME = {str(Outcome.TIMED_OUT): str(Outcome.FAILED)}


def fates(tables: "Tables") -> pl.LazyFrame:
    """Return what became of each row of `trajectories`.

    Columns: trajectory_id, episode_id, group_id, domain, fate (trained, stale, redundant, filtered,
    failed, cancelled, unscored, withheld, waiting, evaluation, or another reason of `Reason`),
    reason (in the words of the tables; null where there is none), first (whether it is the first
    row of its attempt, which has the seconds), sampled (tokens that the policy sampled), seen (the
    other tokens, without those that a branch shares with its parent), seconds (from its creation to
    its end), generate_s, environment_s (resets included) and score_s.
    """
    batched = tables.batches.select("trajectory_id", batched=pl.lit(True)).unique("trajectory_id")
    events = tables.events.filter(pl.col("kind").is_in(_LEFT)).sort("seq")
    left = events.select(episode_id="subject", left="reason").unique("episode_id", keep="first")
    rows = tables.trajectories.join(batched, on="trajectory_id", how="left")
    return rows.join(left, on="episode_id", how="left").select(
        "trajectory_id", "episode_id", "group_id", "domain",
        fate=_fate(),
        reason=pl.when(pl.col("batched").is_null()).then(pl.coalesce("left", "reason")),
        first=FIRST,
        sampled=_SAMPLED,
        seen=pl.col("token_versions").list.len().cast(pl.Int64) - _SAMPLED
        - pl.col("shared_tokens").fill_null(0),
        seconds=_of_first(seconds_between("created_at", "finished_at").fill_null(0.0)),
        generate_s=summed("generate_s"),
        environment_s=summed("step_s") + _of_first(pl.col("reset_s")),
        score_s=_of_first(seconds_between("finished_at", "scored_at").fill_null(0.0)),
    )  # fmt: skip


def fates_by_domain(tables: "Tables") -> pl.LazyFrame:
    """Return attempts, tokens and seconds by domain and fate.

    Columns: domain, fate, attempts, rows, sampled, seen (tokens), share (of the domain's sampled
    tokens of training), seconds, generate_s, environment_s, score_s. A withheld row counts as no
    attempt. Every column but share adds up over domains and fates.
    """
    counted = fates(tables).group_by("domain", "fate").agg(
        attempts=(pl.col("first") & (pl.col("fate") != WITHHELD)).sum().cast(pl.Int64),
        rows=pl.len().cast(pl.Int64),
        **{name: pl.col(name).sum() for name in
           ("sampled", "seen", "seconds", "generate_s", "environment_s", "score_s")},
    )  # fmt: skip
    trains = pl.col("fate") != EVALUATION
    whole = pl.col("sampled").filter(trains).sum().over("domain")
    share = pl.when(trains & (whole > 0)).then(pl.col("sampled") / whole)
    return counted.with_columns(share=share).sort(
        "domain", "sampled", "fate", descending=[False, True, False]
    )


def slow_represented(tables: "Tables") -> float | None:
    """Return how well slow tasks are represented in what was trained on.

    It is the trained share of the slowest quarter of the groups with a known fate, divided by the
    trained share of all of them, each weighted by its attempts. The slowness of a group is the mean
    time of its attempts; aborted ones count with the time they had. 1 is without bias, less means
    that slow tasks are passed over (ROLLART section 6.2). None if too little is known.
    """
    known = fates(tables).filter(
        pl.col("first") & ~pl.col("fate").is_in([EVALUATION, WAITING, str(Outcome.CANCELLED)])
    )
    groups = known.group_by("group_id").agg(
        seconds=pl.col("seconds").mean(), n=pl.len(), trained=(pl.col("fate") == TRAINED).sum()
    )
    found = groups.sort("seconds", "group_id").collect()
    slow = found.tail(max(1, found.height // 4))
    if found.height < 4 or not found["trained"].sum():
        return None
    trained, share = (int(part["trained"].sum()) / int(part["n"].sum()) for part in (slow, found))
    return trained / share


_VERSIONS = pl.col("token_versions")
_SAMPLED = (_VERSIONS.list.len() - _VERSIONS.list.count_matches(-1)).cast(pl.Int64)


def _fate() -> pl.Expr:
    """Return the expression of a row's fate, as `views.story` tells it of one row."""
    left, outcome = pl.col("left"), pl.col("outcome")
    return (
        pl.when(pl.col("batched").is_not_null())
        .then(pl.lit(TRAINED))
        .when(pl.col("split") != Split.TRAIN)
        .then(pl.lit(EVALUATION))
        .when(~outcome.is_in(_TRAINABLE))
        .then(outcome.replace(_BY_OUTCOME))
        .when(left.is_not_null())
        .then(left.replace(_BY_REASON))
        .when(pl.col("policy_version_start").is_null())
        .then(pl.lit(WITHHELD))
        .when(pl.col("reward").is_null())
        .then(pl.lit(UNSCORED))
        .otherwise(pl.lit(WAITING))
    )


def _of_first(value: pl.Expr) -> pl.Expr:
    return pl.when(FIRST).then(value).otherwise(0.0)
