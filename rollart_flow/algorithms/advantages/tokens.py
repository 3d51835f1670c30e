"""Positions of the action tokens of a batch, and the rewards that belong to them.

The generated tokens of a trajectory are one chain of actions, across the observations between them.
The invariant: the rewards of a chain add up to the trajectory's reward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.advantages.columns import Places, rewards_of
from rollart_flow.algorithms.base import Floats, Rows
from rollart_flow.errors import TrainerError


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

    Raises:
        TrainerError: a trajectory has no reward, no action token, or one outside its turns.
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
    return [
        values.slice(start, end - start)
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
    ]


def action_values(batch: pa.Table, column: str, counts: list[int]) -> list[Floats]:
    """Return a column of one number for each action token, by trajectory [action tokens].

    Raises:
        TrainerError: the column is missing, has another number of values, or one that is not
            finite.
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
