"""How losses of tokens become one number: factors on each trajectory's loss.

The trainer takes the mean over all action tokens of a batch. A factor for each trajectory makes of
it any other of the usual means; the factors are stored with the batch (`batches.weight`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from rollart_flow.algorithms.advantages.columns import action_counts
from rollart_flow.algorithms.base import Floats

Aggregation = Literal["token", "sequence", "domain"]
"""`token`: mean over all action tokens of the batch (DAPO, 2503.14476); `sequence`: mean over
trajectories of their mean over tokens (GRPO's first form); `domain`: mean over task domains of the
mean over all tokens of each, so that short answers are not drowned by long episodes."""


def aggregation_weights(batch: pa.Table, aggregation: Aggregation) -> Floats:
    """Factors [trajectories] that turn the mean over all action tokens into the chosen one.

    Raises:
        TrainerError: a trajectory has no action token.
    """
    tokens = action_counts(batch)
    if aggregation == "token":
        return np.ones_like(tokens)
    if aggregation == "sequence":
        return np.asarray(tokens.mean() / tokens)
    _, domain_of = np.unique(batch["domain"].to_pylist(), return_inverse=True)
    of_domain = np.bincount(domain_of, weights=tokens)
    return np.asarray(tokens.sum() / len(of_domain) / of_domain[domain_of])
