"""The reward stage: scores each attempt by itself, as soon as it ends (ROLLART section 6.1).

An attempt is scored once: the function sees all of its branches as one trajectory (`whole`), and
its reward is in the row of each.

The stage runs in the process of the attempt and is stateless: if the process dies, the attempts run
and are scored again. A trajectory that a filter before the reward node drops is not scored.

Ray may end the process by a signal at any time, without a call of `close`. Reward functions hold
connections and child processes only, and the kernel ends both with the process.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollart_flow.episodes import like, whole
from rollart_flow.operators.filters import NamedFilter, refusals
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.score import Scorer
from rollart_flow.rows import trajectories_table
from rollart_flow.store.cache import local_file
from rollart_flow.types import Trajectory


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """Settings of the pipeline that a reward process needs."""

    function: RewardFunction
    timeout_s: float
    max_concurrent: int
    """Maximum number of concurrent calls of the function in one process."""
    timeouts: Mapping[str, float] = field(default_factory=dict)
    """Time limits of the domains that do not have `timeout_s`."""
    source: str | None = None
    """Address of the pipeline file, for a function that cannot be imported by name."""
    isolated: bool = True
    """Whether plain functions run in processes, rather than in threads."""
    environ: tuple[str, ...] = ()
    """Environment variables that the function's processes get."""
    before: Sequence[NamedFilter] = ()
    """Filters before the reward node; trajectories that they refuse are not scored."""

    def scorer(self) -> Scorer:
        """Create a scorer with its own processes."""
        source = None if self.source is None else local_file(self.source)
        return Scorer(self.function, source, isolated=self.isolated, environ=self.environ)


class RewardStage:
    """Scores the trajectories of one process."""

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._scorer = settings.scorer()
        self._places = asyncio.Semaphore(settings.max_concurrent)
        self._version = -1
        """Newest policy version of the trajectories seen so far."""
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, branches: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
        """Return an attempt's branches with its reward, or with the reason for having none."""
        before = self._settings.before
        trajectory = whole(branches)
        if before and refusals(before, trajectories_table([trajectory])) != [None]:
            return tuple(branches)
        self._warm(trajectory)
        async with self._places:
            settings = self._settings
            timeout_s = settings.timeouts.get(trajectory.domain, settings.timeout_s)
            return like(branches, await self._scorer.score(trajectory, timeout_s))

    async def close(self) -> None:
        """Release connections and processes; no trajectory follows."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await self._scorer.close()

    def _warm(self, trajectory: Trajectory) -> None:
        """Start to warm up remote functions when the first trajectory of a new version arrives.

        The other trajectories follow soon, and a function that has scaled to zero takes seconds to
        start again. The stage does not wait for the warm-up.
        """
        newest = trajectory.policy_version_end or 0
        if newest <= self._version or not self._scorer.remotes:
            return
        self._version = newest
        if self._warming is None or self._warming.done():
            places = self._settings.max_concurrent
            self._warming = asyncio.ensure_future(self._scorer.warm_remotes(places))
