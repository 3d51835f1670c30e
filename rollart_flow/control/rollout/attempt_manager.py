"""AttemptManager: the base of the managers that drive one attempt at one task.

The invariants: `run` returns trajectories with an outcome whatever the environment, the engine or
the clock does; the environment is closed on every path; tokens that were generated are kept.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import Admission, Cancellation, ResetOnly, RunningAttempt
from rollart_flow.control.rollout.dispatch import FREE, Dispatch
from rollart_flow.control.rollout.guarded_env import GuardedEnvironment
from rollart_flow.control.rollout.interrupts import AttemptResult, Interruptible, TimeLimit
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.timeouts import timeout
from rollart_flow.types import Assignment, AttemptLimits, Trajectory

_ASK_AGAIN_S = 20.0
"""Time after which an attempt that waits for its clearance asks for its permission again [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """Parts that all attempts of a rollout worker share."""

    proxy: LLMProxy
    """Generates the actions."""
    wall: Callable[[float], datetime]
    """UTC time of a time of the running loop."""
    env_version: str = ""
    """Name and version of the environment, stored with the trajectory."""
    admission: Admission | None = None
    """The scheduler; None for evaluation, which needs no permission."""
    worker: str = ""
    """Name of the rollout worker that runs the attempt."""
    dispatch: Dispatch = FREE
    """How the attempts of the worker wait for one another, and where they are decoded."""


class AttemptManager(ABC):
    """Runs a single attempt.

    Args:
        assignment: the attempt.
        make: makes its environment.
        limits: limits of the attempt.
        context: parts that the attempts of a rollout worker share.
        abort: ends what `Interruptible.generating` names; by default a request to the proxy.
    """

    # A process holds many managers at once; with slots, each is one allocation instead of two.
    __slots__ = (
        "_admission", "_ahead", "_attempt", "_clearance", "_cleared", "_env_version",
        "_environment", "_limits", "_proxy", "_report", "_session", "_time_limit", "_version",
        "_wall", "_worker", "assignment",
    )  # fmt: skip

    def __init__(
        self,
        assignment: Assignment,
        make: Callable[[], AsyncEnvironment],
        limits: AttemptLimits,
        context: AttemptContext,
        abort: Callable[[str], None] | None = None,
    ) -> None:
        self.assignment = assignment
        self._limits = limits
        self._proxy = proxy = context.proxy
        self._wall = context.wall
        self._env_version = context.env_version
        self._admission = context.admission
        self._worker = context.worker
        self._attempt = Interruptible(abort or proxy.abort)
        self._time_limit = TimeLimit(self._attempt, limits.trajectory_timeout_s)
        # An attempt may run twice at once: again after its rollout worker was lost, or assigned
        # again by a restarted scheduler. The requests of both runs need different ids.
        self._session = f"{assignment.trajectory_id}@{context.worker}.{proxy.session()}"
        self._environment = GuardedEnvironment(
            make, assignment.trajectory_id, limits.step_timeout_s, self._attempt
        )
        self._ahead = self._cleared = False
        self._clearance: asyncio.Future[None] | None = None
        self._report: asyncio.Future[None] | None = None
        self._version: int | None = None

    @abstractmethod
    async def _drive(self) -> AttemptResult:
        """Drive the attempt to its result."""

    @abstractmethod
    def _rows(self) -> list[tuple[Recorder, dict[str, Any]]]:
        """Return the record of each branch, with the fields of `Trajectory` that are its own."""

    def cancel(self, cancellation: Cancellation) -> None:
        """End the attempt now, whatever it waits for; only the first call has an effect."""
        self._attempt.interrupt(AttemptResult(cancellation.outcome, cancellation.reason))

    def clear(self) -> None:
        """Let an attempt whose permission is for its reset generate; may come before that."""
        self._cleared = True
        if self._clearance is not None and not self._clearance.done():
            self._clearance.set_result(None)

    def deafen(self, error: BaseException) -> None:
        """End the wait for a clearance with an error, since orders come no more."""
        if self._clearance is not None and not self._clearance.done():
            self._clearance.set_exception(error)

    @property
    def state(self) -> RunningAttempt:
        """The attempt as a restarted scheduler has to know it."""
        assignment = self.assignment
        return RunningAttempt(
            assignment.trajectory_id, assignment.group_id, assignment.attempt, self._version
        )

    async def run(self) -> tuple[Trajectory, ...]:
        """Run the attempt and return its unscored branches; raises only errors of `admission`."""
        created_at = self._now()
        try:
            ending = await self._attempt.run(self._drive())
        finally:
            self._time_limit.pause()
            finished_at = self._now()
            close_error = await self._clean_up()
        if ending.error is None and close_error is not None:
            ending = replace(ending, error=close_error)
        rows = self._rows()
        if (report := self._environment.report) is not None:
            rows[0][1].update(report.columns())
        return tuple(
            recorder.trajectory(
                self.assignment,
                ending,
                created_at=created_at,
                finished_at=finished_at,
                reset_s=0.0 if columns["branch"] else self._environment.reset_s,
                env_version=self._env_version,
                solved=self._environment.solved,
                columns=columns,
            )
            for recorder, columns in rows
        )

    def _now(self) -> datetime:
        return self._wall(asyncio.get_running_loop().time())

    async def _refused(self) -> AttemptResult | None:
        """Return the result of an attempt that gets no permission, or None if it may start."""
        if self._admission is None:
            return None
        trajectory_id = self.assignment.trajectory_id
        with waiting(f"permit({trajectory_id})"):
            permission = await self._admission.permit(trajectory_id, self._worker)
        if isinstance(permission, Cancellation):
            return AttemptResult(permission.outcome, permission.reason)
        self._ahead = isinstance(permission, ResetOnly)
        return None

    async def _until_cleared(self) -> AttemptResult | None:
        """Wait until an attempt that was reset ahead may generate; return its result if it may not.

        It asks again from time to time: a restarted scheduler may have heard nothing of an attempt
        to which the one before it gave its permission.
        """
        while self._ahead and not self._cleared:
            self._clearance = asyncio.get_running_loop().create_future()
            try:
                with waiting(f"clearance({self.assignment.trajectory_id})"):
                    async with timeout(_ASK_AGAIN_S):
                        await self._clearance
            except TimeoutError:
                if (refused := await self._refused()) is not None:
                    return refused
        return None

    def _first_token(self, version: int) -> None:
        """Tell the scheduler, without waiting for it, which version started the trajectory."""
        if self._admission is not None and self._report is None:
            self._version = version
            started = self._admission.started(self.assignment.trajectory_id, version)
            self._report = asyncio.ensure_future(started)

    async def _clean_up(self) -> str | None:
        """Release all resources, and return an error of closing the environment, or None."""
        self._proxy.release(self.assignment.trajectory_id)
        if self._report is not None and not _succeeded(self._report):
            # The commit tells the version too, so an unfinished report need not be awaited.
            self._report.cancel()
            await asyncio.gather(self._report, return_exceptions=True)
        return await self._environment.close()


def _succeeded(report: asyncio.Future[None]) -> bool:
    return report.done() and not report.cancelled() and report.exception() is None
