"""Factors on each trajectory's loss: aggregation of token losses to one number, and staleness.

The trainer computes the mean over all action tokens of a batch. A factor for each trajectory turns
it into another of the usual means; the factors are stored with the batch (`batches.weight`).

The bound drops trajectories that are too old (ROLLART section 6.2). Of the others, older ones may
have a lower weight, since the variance of corrections grows with their lag. The invariant: a fresh
trajectory has the full weight, and an older one never more than a younger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from rollart_flow.algorithms.base import Floats
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.fields import NotNegative, Within
from rollart_flow.validation import CheckedSettings, check_choice, check_count

if TYPE_CHECKING:
    import pyarrow as pa


Aggregation = Literal["token", "sequence", "domain", "constant"]
"""`token`: mean over all action tokens of the batch (DAPO, 2503.14476); `sequence`: mean over
trajectories of their mean over tokens (GRPO's first form); `domain`: mean over task domains of the
mean over all tokens of each, so that short answers are not drowned by long episodes; `constant`:
mean over trajectories of their sum over tokens divided by a constant, so that the length of a
trajectory does not weaken what its tokens teach (Dr.GRPO, 2503.20783)."""


def check_aggregation(aggregation: object, constant_tokens: object) -> None:
    """Raise SettingsError for an unknown aggregation, or a divisor that does not belong to it."""
    check_choice("aggregation", aggregation, get_args(Aggregation))
    if aggregation == "constant":
        check_count("constant_tokens", constant_tokens, low=1)
    elif constant_tokens != 0:
        raise SettingsError(
            f"constant_tokens={constant_tokens!r}: expected 0 with aggregation={aggregation!r}; "
            "it belongs to 'constant'"
        )


def aggregation_weights(
    batch: pa.Table, aggregation: Aggregation, constant_tokens: int = 0
) -> Floats:
    """Return the factors [trajectories] that turn the mean over all action tokens into another.

    `constant_tokens` is the divisor of a trajectory's sum for `constant`, 0 for the others. Raises
    SettingsError as `check_aggregation`, and TrainerError if a trajectory has no action token.
    """
    import numpy as np

    from rollart_flow.algorithms.advantages.columns import action_counts

    check_aggregation(aggregation, constant_tokens)
    tokens = action_counts(batch)
    if aggregation == "token":
        return np.ones_like(tokens)
    if aggregation == "sequence":
        return np.asarray(tokens.mean() / tokens)
    if aggregation == "constant":
        return np.full_like(tokens, tokens.mean() / constant_tokens)
    _, domain_of = np.unique(batch["domain"].to_pylist(), return_inverse=True)
    of_domain = np.bincount(domain_of, weights=tokens)
    return np.asarray(tokens.sum() / len(of_domain) / of_domain[domain_of])


@dataclass(frozen=True, slots=True)
class Decayed(CheckedSettings):
    """factor^max(0, staleness - after): each version of lag multiplies the weight by `factor`."""

    factor: Annotated[float, Within(0, 1, open_low=True)] = 0.9
    """Factor on a trajectory's weight for each version; 1 changes nothing."""
    after: NotNegative = 0
    """Staleness up to which the weight is unchanged [versions]."""

    def __call__(self, batch: pa.Table) -> Floats:
        """Return factors [trajectories] in (0, 1] from the column `staleness` [versions]."""
        import numpy as np

        lag = np.maximum(staleness_of(batch) - self.after, 0.0)
        return np.asarray(self.factor**lag)


def staleness_of(batch: pa.Table) -> Floats:
    """Return the staleness [trajectories] in versions; TrainerError if one has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch["staleness"]
    if column.null_count:
        at = pc.index(pc.is_null(column), value=True).as_py()
        raise TrainerError(f"trajectory {at} of the batch has no staleness")
    staleness: Floats = column.cast(pa.float64()).combine_chunks().to_numpy()
    return staleness
