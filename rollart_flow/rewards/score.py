"""Score one trajectory with a reward function that may raise, hang or answer nonsense.

Where a function runs: the environment's own reward and async functions in the event loop, since
the first cannot hang and the second is cancelled at its timeout; every other plain function in a
process, since nothing else can be abandoned (a thread cannot be killed, and a regular expression
that backtracks holds the interpreter). The processes are warm: one call costs about a millisecond,
and what starting one takes is not counted against the function's time limit (`processes`). A
combined function runs in the loop, and each of its parts by these same rules.

Invariant: no exception of a reward function escapes; a trajectory comes back scored, or with the
outcome, reason and error that say why it is not (ROLLART 3, R3: a reward holds no state, so that
it can be tried anywhere).
"""

import asyncio
import base64
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rollart_flow.errors import RewardNotFiniteError, RewardTimeoutError, RollartError
from rollart_flow.isolation.child import error_line
from rollart_flow.isolation.references import reference
from rollart_flow.rewards.base import RemoteReward, RewardFunction, as_remote, environment_reward
from rollart_flow.rewards.checked import Checked, infinite_number, typed_score
from rollart_flow.rewards.combined import Combined, call_here, is_async, name_of, single_functions
from rollart_flow.rewards.processes import Deadline, Processes
from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reward function said: a reward, or why there is none."""

    reward: float | None = None
    parts: Mapping[str, float] | None = None
    reason: Reason | None = None
    error: str | None = None


class Scorer:
    """A reward function, and the idle processes that it runs in where it is a plain one.

    One of these for each reward process. It holds as many processes as there were calls at a time.
    """

    def __init__(self, function: RewardFunction, source: Path | None = None) -> None:
        """Start nothing yet.

        Args:
            function: plain or async.
            source: pipeline file with the function, where it cannot be imported by name.
        """
        self._function = function
        self._source = source
        self._processes = Processes()

    async def score(self, trajectory: Trajectory, timeout_s: float) -> Trajectory:
        """The trajectory with its reward; failed or timed out where there is none.

        Only completed and truncated trajectories are scored; others come back as they are.
        """
        if trajectory.outcome not in TRAINABLE:
            return trajectory
        found = await self.verdict(trajectory, timeout_s)
        if found.reason is None:
            return replace(
                trajectory,
                reward=found.reward,
                reward_parts=found.parts,
                scored_at=datetime.now(UTC),
            )
        outcome = Outcome.TIMED_OUT if found.reason is Reason.REWARD_TIMEOUT else Outcome.FAILED
        return replace(
            trajectory,
            outcome=outcome,
            reason=found.reason,
            error=found.error,
            reward=None,
            reward_parts=None,
            scored_at=None,
        )

    async def verdict(self, trajectory: Trajectory, timeout_s: float) -> Verdict:
        """What the function says of a completed or truncated trajectory."""
        try:
            async with asyncio.timeout(timeout_s) as limit:
                deadline = Deadline(limit)
                try:
                    score = await self._call(deadline, self._function, trajectory)
                finally:
                    deadline.end()
        except Exception as error:  # noqa: BLE001  the user's code ends here: its error is data
            if isinstance(error, TimeoutError) and limit.expired():
                return self._none(Reason.REWARD_TIMEOUT, f"no reward within {timeout_s:g} s")
            return self._none(_reason(error), _message(error))
        if (infinite := infinite_number(score)) is not None:
            return self._none(Reason.REWARD_NOT_FINITE, infinite)
        return Verdict(*score)

    @property
    def remotes(self) -> tuple[RemoteReward, ...]:
        """The remote functions among those that the reward comes down to, each once."""
        found = filter(None, map(as_remote, single_functions(self._function)))
        return tuple({id(remote): remote for remote in found}.values())

    async def warm(self, count: int) -> None:
        """Have remote functions, and processes for plain ones, ready for `count` calls."""
        await self.warm_remotes(count)
        for function in filter(_runs_in_a_process, single_functions(self._function)):
            await self._processes.warm(reference(function, self._source), count)

    async def warm_remotes(self, count: int) -> None:
        """Have the remote functions ready for `count` calls at a time."""
        await asyncio.gather(*(remote.warm(count) for remote in self.remotes))

    async def close(self) -> None:
        """End the idle processes, and the connections of remote functions. May be called twice."""
        await self._processes.close()
        for remote in self.remotes:
            await remote.close()

    async def _call(
        self, deadline: Deadline, function: RewardFunction, trajectory: Trajectory
    ) -> Checked:
        if isinstance(function, Combined):
            call = partial(self._call, deadline)
            return typed_score(await function.combine(trajectory, call))
        if not _runs_in_a_process(function):
            return await call_here(function, trajectory)
        packed = base64.b64encode(pickle.dumps(trajectory)).decode()
        where = reference(function, self._source)
        process = await self._processes.take(where, deadline)
        try:
            request = {"function": where, "trajectory": packed}
            return typed_score(await process.isolated.call(request))
        finally:
            self._processes.give(process)

    def _none(self, reason: Reason, error: str) -> Verdict:
        said = f"reward function {name_of(self._function)}: {error}"
        return Verdict(reason=reason, error=said)


def _runs_in_a_process(function: RewardFunction) -> bool:
    """Whether a function that is no combined one is a plain one that may hang."""
    return function is not environment_reward and not is_async(function)


def _reason(error: Exception) -> Reason:
    """Why there is no reward, where the function itself did not take too long here."""
    if isinstance(error, RewardTimeoutError):
        return Reason.REWARD_TIMEOUT
    return (
        Reason.REWARD_NOT_FINITE if isinstance(error, RewardNotFiniteError) else Reason.REWARD_ERROR
    )


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RollartError) else error_line(error)


async def score(
    trajectory: Trajectory,
    function: RewardFunction = environment_reward,
    timeout_s: float = 60.0,
    source: Path | None = None,
) -> Trajectory:
    """`Scorer.score` for a single trajectory; a process, where one is needed, ends with it."""
    scorer = Scorer(function, source)
    try:
        return await scorer.score(trajectory, timeout_s)
    finally:
        await scorer.close()
