"""Aggregation of token losses to one number, as factors on each trajectory's loss.

The trainer computes the mean over all action tokens of a batch. A factor for each trajectory turns
it into another of the usual means; the factors are stored with the batch (`batches.weight`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from rollart_flow.algorithms.base import Floats
from rollart_flow.errors import SettingsError
from rollart_flow.validation import check_choice, check_count

if TYPE_CHECKING:
    import pyarrow as pa

Aggregation = Literal["token", "sequence", "domain", "constant"]
"""`token`: mean over all action tokens of the batch (DAPO, 2503.14476); `sequence`: mean over
trajectories of their mean over tokens (GRPO's first form); `domain`: mean over task domains of the
mean over all tokens of each, so that short answers are not drowned by long episodes; `constant`:
mean over trajectories of their sum over tokens divided by a constant, so that the length of a
trajectory does not weaken what its tokens teach (Dr.GRPO, 2503.20783)."""


def check_aggregation(aggregation: object, constant_tokens: object) -> None:
    """Refuse an unknown aggregation, a divisor with another one than `constant`, or vice versa.

    Raises:
        SettingsError: names the setting, its value and the allowed values.
    """
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

    Args:
        batch: table with action_mask and domain.
        aggregation: the chosen mean.
        constant_tokens: divisor of a trajectory's sum for `constant` [tokens], such as the largest
            number of tokens of an action; 0 for the others.

    Raises:
        SettingsError: see `check_aggregation`.
        TrainerError: a trajectory has no action token.
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
