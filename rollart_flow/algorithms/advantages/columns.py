"""Functions with which estimators read the columns of a batch.

The generated tokens of a trajectory are one chain of actions, across the observations between them.
The invariant: the rewards of a chain add up to the trajectory's reward.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.base import Floats, Rows
from rollart_flow.errors import TrainerError

Places = np.ndarray[tuple[int], np.dtype[np.int64]]


def rewards_of(batch: pa.Table) -> Floats:
    """Return the rewards [trajectories]; TrainerError if one is missing or not finite."""
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
    """Return the number of action tokens [trajectories]; TrainerError if one has none."""
    masks = batch["action_mask"].combine_chunks()
    ends = np.concatenate([[0], np.cumsum(masks.flatten().to_numpy(zero_copy_only=False))])
    lengths = pc.list_value_length(masks).to_numpy(zero_copy_only=False)
    stops = np.cumsum(lengths)
    counts = ends[stops] - ends[stops - lengths]
    if len(counts) == 0 or counts.min() < 1:
        raise TrainerError("the batch is empty or has a trajectory without an action token")
    return np.asarray(counts, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Actions:
    """The action tokens of one trajectory."""

    turns: Places
    """Turn of each action token [action tokens], from 0."""
    chunks: Places
    """Chunk of each action token [action tokens], from 0; no observation lies within a chunk."""
    rewards: Floats
    """Reward of each turn [turns], given by the environment; the last one also has the difference
    of the trajectory's reward from their sum."""
    observations: tuple[str, ...]
    """Observation at the start of each turn."""

    @property
    def paid(self) -> Floats:
        """Reward of each action token [action tokens]: that of a turn belongs to its last token.

        The reward of a turn without generated tokens belongs to the token before it.
        """
        paid = np.zeros(len(self.turns))
        last = np.searchsorted(self.turns, np.arange(len(self.rewards)), side="right") - 1
        np.add.at(paid, np.maximum(last, 0), self.rewards)
        return paid


def actions_of(batch: pa.Table) -> list[Actions]:
    """Return the action tokens of each trajectory, in the order of the batch.

    Raises TrainerError if one has no reward, no action token, or one outside its turns.
    """
    rows = zip(_rows(batch, "action_mask"), _rows(batch, "turns"), rewards_of(batch), strict=True)
    return [_actions(place, *row) for place, row in enumerate(rows)]


def _actions(place: int, mask: pa.Array, turns: pa.Array, reward: float) -> Actions:
    positions = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
    ends = turns.field("end").to_numpy()
    if len(positions) == 0:
        raise TrainerError(f"trajectory {place} of the batch has no action token")
    if len(ends) == 0 or positions[-1] >= ends[-1]:
        raise TrainerError(f"trajectory {place} of the batch has an action token outside its turns")
    rewards = turns.field("reward").to_numpy().astype(np.float64)
    rewards[-1] += reward - rewards.sum()
    return Actions(
        turns=np.searchsorted(ends, positions, side="right"),
        chunks=np.cumsum(np.diff(positions, prepend=positions[0]) > 1),
        rewards=rewards,
        observations=tuple(turns.field("observation").to_pylist()),
    )


def _rows(batch: pa.Table, column: str) -> list[pa.Array]:
    """Return the elements of each list of a column, which may be chunked or sliced."""
    lists = batch[column].combine_chunks()
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    values = lists.flatten()
    return [values.slice(start, end - start) for start, end in pairwise([0, *ends.tolist()])]


def action_values(batch: pa.Table, column: str, counts: list[int]) -> list[Floats]:
    """Return a column of one number for each action token, by trajectory [action tokens].

    Raises TrainerError unless the batch has it, with one finite value for each action token.
    """
    if column not in batch.column_names:
        raise TrainerError(f"the batch has no column {column!r}, which its estimator reads")
    found = [_floats(values) for values in _rows(batch, column)]
    for place, (values, count) in enumerate(zip(found, counts, strict=True)):
        if len(values) != count or not np.isfinite(values).all():
            raise TrainerError(
                f"trajectory {place} of the batch must have {count} finite {column}, "
                "one for each action token"
            )
    return found


def behavior_logprobs(batch: pa.Table) -> list[Floats]:
    """Return the stored log mu of the action tokens of each trajectory [action tokens]."""
    pairs = zip(_rows(batch, "logprobs"), _rows(batch, "action_mask"), strict=True)
    return [_floats(values)[mask.to_numpy(zero_copy_only=False)] for values, mask in pairs]


def _floats(values: pa.Array) -> Floats:
    floats: Floats = values.to_numpy(zero_copy_only=False).astype(np.float64)
    return floats


def float32(values: Iterable[Floats]) -> Rows:
    """Return numbers of each trajectory in the type of `Advantages`."""
    return tuple(value.astype(np.float32) for value in values)


def discounted(rewards: Floats, gamma: float) -> Floats:
    """Return G_t = r_t + gamma G_(t+1), of the same shape."""
    returns = np.array(rewards)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns
