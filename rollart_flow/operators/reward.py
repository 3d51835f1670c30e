"""The reward operator: scores each trajectory by itself, as soon as it ends (ROLLART section 6.1).

Stateless: an actor that dies is started again and its trajectories are scored again. A trajectory
that a filter before reward drops is not scored.

Nothing is closed when such an actor ends, since Ray may end it by a signal at any time: what its
rewards hold are connections and child processes, and the kernel ends both with it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from rollart_flow.operators.filters import NamedFilter, refusals
from rollart_flow.rewards.base import RewardFunction, environment_reward
from rollart_flow.rewards.score import Scorer
from rollart_flow.rows import trajectory_from_row, with_scores
from rollart_flow.store.cache import local_file
from rollart_flow.types import Trajectory


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """What a reward process needs to know of the pipeline."""

    function: RewardFunction | None
    """None: the environment's own reward."""
    timeout_s: float
    max_concurrent: int
    """Calls of the function at a time."""
    source: str | None = None
    """Address of the pipeline file with the function, where it cannot be imported by name."""
    before: Sequence[NamedFilter] = ()
    """Filters that stand before reward."""

    def scorer(self) -> Scorer:
        """A scorer with processes of its own."""
        source = None if self.source is None else local_file(self.source)
        return Scorer(self.function or environment_reward, source)


class RewardOperator:
    """Scores blocks of unscored trajectories."""

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._scorer = settings.scorer()
        self._places = asyncio.Semaphore(settings.max_concurrent)
        self._version = -1
        """Newest policy version that a trajectory came from."""
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, block: pa.Table) -> pa.Table:
        """The same trajectories with their rewards, or with why there is none."""
        refused = refusals(self._settings.before, block)
        trajectories = [trajectory_from_row(row) for row in block.to_pylist()]
        self._warm(trajectories)
        scored = [
            await self.score(trajectory) if by is None else trajectory
            for trajectory, by in zip(trajectories, refused, strict=True)
        ]
        return with_scores(block, scored)

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """One trajectory, once there is a place for it."""
        async with self._places:
            return await self._scorer.score(trajectory, self._settings.timeout_s)

    def _warm(self, trajectories: Sequence[Trajectory]) -> None:
        """Make the function ready for a step's rewards when its first rollout has finished.

        The others follow in a moment, and a function that has scaled to zero takes seconds to be
        there again. Nobody waits for it.
        """
        newest = max((t.policy_version_end or 0 for t in trajectories), default=-1)
        if newest <= self._version or not self._scorer.remotes:
            return
        self._version = newest
        if self._warming is None or self._warming.done():
            places = self._settings.max_concurrent
            self._warming = asyncio.ensure_future(self._scorer.warm_remotes(places))
