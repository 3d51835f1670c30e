"""Functions with which estimators read the columns of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.base import Floats, Rows
from rollart_flow.errors import TrainerError

Places = np.ndarray[tuple[int], np.dtype[np.int64]]


def rewards_of(batch: pa.Table) -> Floats:
    """Return the rewards [trajectories].

    Raises:
        TrainerError: a reward is missing or not finite.
    """
    rewards = batch["reward"].cast(pa.float64())
    values: Floats = pc.fill_null(rewards, float("nan")).combine_chunks().to_numpy()
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise TrainerError(f"trajectory {at} of the batch has no finite reward; it must be scored")
    return values


def groups_of(batch: pa.Table) -> Iterator[Places]:
    """Yield the places of the members of each group, in order of their first members."""
    encoded = pc.dictionary_encode(batch["group_id"].combine_chunks())
    group_of = encoded.indices.to_numpy(zero_copy_only=False)
    for group in range(len(encoded.dictionary)):
        yield np.flatnonzero(group_of == group)


def in_groups(batch: pa.Table, estimate: Callable[[Floats], Floats]) -> tuple[Floats, int]:
    """Return values estimated from the rewards of each group [trajectories].

    A group of equal rewards has values of exactly 0, although its mean may differ from them by a
    rounding error; the second part of the result is the number of these groups.

    Raises:
        TrainerError: a reward is missing or not finite.
    """
    rewards = rewards_of(batch)
    values, constant = np.zeros(len(rewards)), 0
    for members in groups_of(batch):
        if np.ptp(rewards[members]) > 0:
            values[members] = estimate(rewards[members])
        else:
            constant += 1
    return values, constant


def equal_groups(batch: pa.Table) -> int:
    """Return the number of groups whose rewards are all equal."""
    return in_groups(batch, np.zeros_like)[1]


def one_each(values: Floats) -> Rows:
    """Return one number for all action tokens of each trajectory, as in `Advantages`."""
    return tuple(np.array([value], dtype=np.float32) for value in values)


def action_counts(batch: pa.Table) -> Floats:
    """Return the number of action tokens of each trajectory [trajectories].

    Raises:
        TrainerError: a trajectory has none, or the batch is empty.
    """
    masks = batch["action_mask"].combine_chunks()
    ends = np.concatenate([[0], np.cumsum(masks.flatten().to_numpy(zero_copy_only=False))])
    lengths = pc.list_value_length(masks).to_numpy(zero_copy_only=False)
    stops = np.cumsum(lengths)
    counts = ends[stops] - ends[stops - lengths]
    if len(counts) == 0 or counts.min() < 1:
        raise TrainerError("the batch is empty or has a trajectory without an action token")
    return np.asarray(counts, dtype=np.float64)
