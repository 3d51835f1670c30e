"""Means over the tokens of a trajectory or of a chunk, given to each of its tokens.

The invariant: a mean depends on its own segment's tokens alone, so that how trajectories share a
micro-batch changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def segment_means(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Mean over each segment, at each of its tokens; differentiable.

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
    """Largest value of each segment, at each of its tokens; arguments as of `segment_means`."""
    count = int(segments.max()) + 1 if len(segments) else 0
    largest = values.new_full((count,), int(values.min()) if len(values) else 0)
    return largest.scatter_reduce(0, segments, values, "amax").index_select(0, segments)
