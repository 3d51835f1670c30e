"""Statistics of the tokens of a trajectory or chunk, repeated for each of its tokens.

The invariant: a statistic depends on the tokens of its own segment alone, so that the grouping of
trajectories into micro-batches changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def segment_means(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Return the mean over each segment, at each of its tokens; differentiable.

    Args:
        values: [tokens].
        segments: int64 [tokens], the segment of each token, from 0.
    """
    import torch

    count = int(segments.max()) + 1 if len(segments) else 0
    sums = values.new_zeros(count).index_add(0, segments, values)
    sizes = values.new_zeros(count).index_add(0, segments, torch.ones_like(values).detach())
    return (sums / sizes).index_select(0, segments)


def segment_maxima(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Return the largest value of each segment, at each token; arguments as in `segment_means`."""
    count = int(segments.max()) + 1 if len(segments) else 0
    largest = values.new_full((count,), int(values.min()) if len(values) else 0)
    return largest.scatter_reduce(0, segments, values, "amax").index_select(0, segments)
