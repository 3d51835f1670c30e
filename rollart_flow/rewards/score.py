"""Scoring of one trajectory with a reward function that may raise, hang or return invalid values.

The environment's own reward and async functions run in the event loop, since the first cannot hang
and the second is cancelled at its timeout. Every other plain function runs in a process, since only
a process can be killed: a thread cannot, and a regular expression that backtracks holds the
interpreter. An executor without isolation uses threads nevertheless. The processes are kept warm:
one call costs about a millisecond, and the start of a process does not count against the function's
time limit (`processes`). A combined function runs in the loop, and each of its parts by the same
rules.

Invariant: no exception of a reward function escapes; the returned trajectory is scored, or has the
outcome, reason and error of the failure (ROLLART section 3, R3: a reward is stateless, so that it
can be retried anywhere).
"""

import asyncio
import base64
import logging
import pickle
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rollart_flow.errors import RewardNotFiniteError, RewardTimeoutError, RollartError
from rollart_flow.isolation.child import error_line
from rollart_flow.isolation.references import reference
from rollart_flow.isolation.thread import CallThread
from rollart_flow.rewards.base import (
    CheckedScore,
    RewardFunction,
    as_remote,
    environment_reward,
    infinite_number,
    typed_score,
)
from rollart_flow.rewards.composition import (
    Combined,
    call_here,
    is_async,
    name_of,
    single_functions,
)
from rollart_flow.rewards.processes import Deadline, Processes
from rollart_flow.secret import masked, variables_in
from rollart_flow.text import NewTexts, one_line, trace
from rollart_flow.timeouts import timeout
from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory
from rollart_flow.types.trajectories import unscored
from rollart_flow.types.verdicts import Verdict

_log = logging.getLogger(__name__)
_new = NewTexts()


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The result of a reward function: a reward, or the reason of its failure."""

    reward: float | None = None
    parts: Mapping[str, float] | None = None
    verdicts: tuple[Verdict, ...] = ()
    reason: Reason | None = None
    error: str | None = None


class Scorer:
    """A reward function, with the pool of processes that it runs in if it is plain.

    Each reward process has one scorer. The pool grows to the largest number of concurrent calls.
    """

    def __init__(
        self,
        function: RewardFunction,
        source: Path | None = None,
        *,
        isolated: bool = True,
        environ: Collection[str] = (),
    ) -> None:
        """Start no process; `source` is the pipeline file of a function that no name imports.

        Its processes get the environment variables of the names in `environ` and of its secrets.
        Plain functions that are not `isolated` run in threads of this process.
        """
        self._function = function
        self._isolated = isolated
        remotes = filter(None, map(as_remote, single_functions(function)))
        self.remotes = tuple({id(remote): remote for remote in remotes}.values())
        """The remote functions among the leaves of the reward, each once."""
        self._threads: list[CallThread] = []
        self._source = source
        self._processes = Processes(frozenset(environ) | variables_in(function))

    async def score(self, trajectory: Trajectory, timeout_s: float) -> Trajectory:
        """Return the trajectory with its reward, or as failed or timed out if there is none.

        Only completed and truncated trajectories are scored; others are returned unchanged.
        """
        if trajectory.outcome not in TRAINABLE:
            return trajectory
        found = await self.verdict(trajectory, timeout_s)
        if found.reason is None:
            return replace(
                trajectory,
                reward=found.reward,
                reward_parts=found.parts,
                scored_at=max(datetime.now(UTC), trajectory.finished_at),  # two clocks
                reward_verdicts=found.verdicts or None,
            )
        outcome = Outcome.TIMED_OUT if found.reason is Reason.REWARD_TIMEOUT else Outcome.FAILED
        failed = unscored(trajectory)
        return replace(failed, outcome=outcome, reason=found.reason, error=found.error)

    async def verdict(self, trajectory: Trajectory, timeout_s: float) -> ScoreResult:
        """Return the function's result for a completed or truncated trajectory."""
        if self._function is environment_reward:  # a sum of checked numbers, which needs no limit
            return self._result(typed_score(environment_reward(trajectory)))
        try:
            async with timeout(timeout_s) as limit:
                deadline = Deadline(limit)
                try:
                    score = await self._call(deadline, self._function, trajectory)
                finally:
                    deadline.end()
        # The user's code ends here: its error is data, `sys.exit()` too.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            if isinstance(error, TimeoutError) and limit.expired():
                return self._none(Reason.REWARD_TIMEOUT, f"no reward within {timeout_s:g} s")
            said = one_line(error) if isinstance(error, RollartError) else error_line(error)
            if _new(said):
                _log.warning("reward: %s\n%s", said, trace(error))
            return self._none(_reason(error), masked(said))
        return self._result(score)

    async def warm(self, count: int) -> None:
        """Prepare remote functions, and processes for plain ones, for `count` concurrent calls."""
        await self.warm_remotes(count)
        for function in filter(_runs_in_a_process, single_functions(self._function)):
            await self._processes.warm(reference(function, self._source), count)

    async def warm_remotes(self, count: int) -> None:
        await asyncio.gather(*(remote.warm(count) for remote in self.remotes))

    async def close(self) -> None:
        """End idle processes and close remote functions. May be called twice."""
        await self._processes.close()
        while self._threads:
            self._threads.pop().end()
        for remote in self.remotes:
            await remote.close()

    async def _call(
        self, deadline: Deadline, function: RewardFunction, trajectory: Trajectory
    ) -> CheckedScore:
        if isinstance(function, Combined):
            call = partial(self._call, deadline)
            return typed_score(await function.combine(trajectory, call))
        if not _runs_in_a_process(function):
            return await call_here(function, trajectory)
        if not self._isolated:
            return typed_score(await self._call_in_thread(function, trajectory))
        packed = base64.b64encode(pickle.dumps(trajectory)).decode()
        where = reference(function, self._source)
        process = await self._processes.take(where, deadline)
        try:
            request = {"function": where, "trajectory": packed}
            return typed_score(await process.isolated.call(request))
        finally:
            self._processes.give(process)

    async def _call_in_thread(self, function: RewardFunction, trajectory: Trajectory) -> object:
        thread = self._threads.pop() if self._threads else CallThread("reward")
        score = await thread.call(lambda: function(trajectory))
        self._threads.append(thread)  # not after a timeout, when the call still occupies it
        return score

    def _result(self, score: CheckedScore) -> ScoreResult:
        if (infinite := infinite_number(score)) is not None:
            return self._none(Reason.REWARD_NOT_FINITE, infinite)
        return ScoreResult(*score)

    def _none(self, reason: Reason, error: str) -> ScoreResult:
        said = f"reward function {name_of(self._function)}: {error}"
        return ScoreResult(reason=reason, error=one_line(said))


def _runs_in_a_process(function: RewardFunction) -> bool:
    return function is not environment_reward and not is_async(function)


def _reason(error: BaseException) -> Reason:
    """Return the reason of a failure other than the function's own timeout here."""
    if isinstance(error, RewardTimeoutError):
        return Reason.REWARD_TIMEOUT
    infinite = isinstance(error, RewardNotFiniteError)
    return Reason.REWARD_NOT_FINITE if infinite else Reason.REWARD_ERROR


async def score(
    trajectory: Trajectory,
    function: RewardFunction = environment_reward,
    timeout_s: float = 60.0,
    source: Path | None = None,
) -> Trajectory:
    """Score a single trajectory as `Scorer.score` does; its process, if any, ends with the call."""
    scorer = Scorer(function, source)
    try:
        return await scorer.score(trajectory, timeout_s)
    finally:
        await scorer.close()
