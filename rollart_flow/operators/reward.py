"""The reward operator: scores each trajectory by itself, as soon as it ends (ROLLART section 6.1).

The same actor then hands the trajectory to the buffer (`BufferSink`).

The operator is stateless: if an actor dies, another one starts and scores its trajectories again.
A trajectory that a filter before the reward node drops is not scored.

An actor does not close its resources when it ends, since Ray may end it by a signal at any time.
Reward functions hold connections and child processes only, and the kernel ends both with the actor.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.operators.filters import NamedFilter, refusals
from rollart_flow.resources import Remote
from rollart_flow.rewards.base import RewardFunction, environment_reward
from rollart_flow.rewards.score import Scorer
from rollart_flow.rows import to_ipc, trajectory_from_row, with_scores
from rollart_flow.store.cache import local_file
from rollart_flow.types import Trajectory

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """Settings of the pipeline that a reward process needs."""

    function: RewardFunction | None
    """Reward function, or None for the environment's own reward."""
    timeout_s: float
    max_concurrent: int
    """Maximum number of concurrent calls of the function."""
    source: str | None = None
    """Address of the pipeline file, for a function that cannot be imported by name."""
    before: Sequence[NamedFilter] = ()
    """Filters before the reward node; trajectories that they refuse are not scored."""

    def scorer(self) -> Scorer:
        """Create a scorer with its own processes."""
        source = None if self.source is None else local_file(self.source)
        return Scorer(self.function or environment_reward, source)


class RewardOperator:
    """Operator that scores blocks of unscored trajectories."""

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._scorer = settings.scorer()
        self._places = asyncio.Semaphore(settings.max_concurrent)
        self._version = -1
        """Newest policy version of the trajectories seen so far."""
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Return the same trajectories with their rewards, or with the reasons for having none."""
        refused = refusals(self._settings.before, block)
        trajectories = [trajectory_from_row(row) for row in block.to_pylist()]
        self._warm(trajectories)
        scored = [
            await self.score(trajectory) if by is None else trajectory
            for trajectory, by in zip(trajectories, refused, strict=True)
        ]
        return with_scores(block, scored)

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """Score one trajectory, once the limit on concurrent calls permits."""
        async with self._places:
            return await self._scorer.score(trajectory, self._settings.timeout_s)

    def _warm(self, trajectories: Sequence[Trajectory]) -> None:
        """Start to warm up remote functions when the first trajectory of a new version arrives.

        The other trajectories follow soon, and a function that has scaled to zero takes seconds to
        start again. The operator does not wait for the warm-up.
        """
        newest = max((t.policy_version_end or 0 for t in trajectories), default=-1)
        if newest <= self._version or not self._scorer.remotes:
            return
        self._version = newest
        if self._warming is None or self._warming.done():
            places = self._settings.max_concurrent
            self._warming = asyncio.ensure_future(self._scorer.warm_remotes(places))


class BufferSink:
    """Operator that hands trajectories to the buffer and waits until they are durable.

    If its process dies, the operator runs again and may resend trajectories; the buffer stores each
    trajectory once.
    """

    def __init__(self, buffer: "Remote[BufferActor]") -> None:
        self._buffer = buffer

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Commit a block; return its ids and outcomes once its rows are in the table."""
        await self._buffer.call.put.start(to_ipc(block))
        return block.select(["trajectory_id", "outcome"])
