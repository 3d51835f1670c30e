"""SandboxPool: boxes that are ready before an attempt asks for them.

The pool starts a box for each attempt that is expected, and for each that asks. Boxes of one key
(all that they begin with, `environment_key`) are alike, so that the attempts of a group share them.
A box that was given back is never used again: it ends, and another one starts if one is expected.
All time is that of the running loop.

The invariants: a box that is handed out has answered a moment ago, and nobody else has had it. It
ends with its lease, which ends with the attempt, with the process that holds it, or with its time.
Every box that was started has exactly one record, reported once it has ended. An attempt that holds
a box never waits for another attempt to give one back.
"""

import asyncio
import math
from collections.abc import Callable
from datetime import datetime

from rollart_flow.control.loop.waits import waiting
from rollart_flow.errors import SandboxError, SettingsError, TaskQuarantinedError
from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.box_calls import Message, error_answer, spec_of
from rollart_flow.sandbox.pool_boxes import (
    FAILURE,
    HEALTH,
    LEASE,
    BoxRecord,
    BoxUser,
    Create,
    PooledBox,
)
from rollart_flow.sandbox.pool_demand import BoxRequest, PoolSettings
from rollart_flow.sandbox.pool_stock import BoxStock
from rollart_flow.text import one_line

_OVER = "the sandbox has ended: its attempt or its lease is over"


class SandboxPool:
    """The boxes of one process.

    Args:
        create: starts a box.
        settings: names and bounds.
        report: receives the record of each box that has ended.
        now: returns the present UTC time.
    """

    def __init__(
        self,
        create: Create,
        settings: PoolSettings,
        report: Callable[[BoxRecord], None],
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._stock = BoxStock(create, settings, now, self._hand_out, self._give_up, report)
        self._users: dict[str, BoxUser] = {}
        """Attempts that are expected, wait or hold, by session."""
        self._expected: dict[str, str] = {}
        """Key of the first box of each expected session."""
        self._leases: dict[str, dict[int, PooledBox]] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        """Ends of leases, by session."""
        self._holders: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        """Failures of boxes in a row, by task."""
        self._quarantined: dict[str, str] = {}
        """Why tasks get no more boxes."""

    def __len__(self) -> int:
        return len(self._stock.boxes)

    def expect(
        self, user: BoxUser, spec: SandboxSpec, snapshot: SandboxSnapshot | None = None
    ) -> None:
        """Start a box for an attempt that will ask for one; a repeated call has no effect."""
        known = user.session in self._users or user.task_id in self._quarantined
        if known or self._stock.closed:
            return
        self._know(user)
        demand = self._stock.demand(spec, snapshot, user)
        self._expected[user.session] = demand.key
        demand.expected.add(user.session)
        self._stock.balance()

    def renew(self, holder: str) -> None:
        """Learn that a process lives, which holds boxes or will."""
        self._stop(self._holders.pop(holder, None))
        loop = asyncio.get_running_loop()
        self._holders[holder] = loop.call_later(self._settings.holder_s, self.lose, holder)

    def lose(self, holder: str) -> None:
        """End everything of a process that is gone."""
        self._stop(self._holders.pop(holder, None))
        for user in [user for user in self._users.values() if user.holder == holder]:
            self.release(user.session, LEASE)

    async def answer(
        self, user: BoxUser, call: Message, data: bytes = b""
    ) -> tuple[Message, bytes]:
        """Answer a call of an attempt's box (`box_calls`). Raises only if it is cancelled."""
        if call["call"] != "open":
            return await self.call(user.session, call, data)
        try:
            await self.open(user, call["box"], *spec_of(call, data))
        except Exception as error:  # noqa: BLE001  raised again where the call was made
            return error_answer(error), b""
        return {"value": None}, b""

    async def call(self, session: str, call: Message, data: bytes = b"") -> tuple[Message, bytes]:
        """Answer a call of a box that a session has opened. Raises only if it is cancelled."""
        number = call["box"]
        box = self._leases.get(session, {}).get(number)
        if call["call"] == "close":
            if box is not None:
                await asyncio.shield(self._give_back(box, number))
            return {"value": None}, b""
        if box is None:
            return error_answer(SandboxError(_OVER)), b""
        answer, found = await box.answer(call, data)
        if "error" in answer and not box.alive and self._holds(box, number):
            self._give_back(box, number, error=answer["error"][1])
        return answer, found

    async def open(
        self, user: BoxUser, number: int, spec: SandboxSpec, snapshot: SandboxSnapshot | None = None
    ) -> PooledBox:
        """Return a box that answers and that nobody else has had.

        Args:
            user: the attempt.
            number: number of the box among those of the attempt.
            spec: contents and limits.
            snapshot: files that it begins with.

        Raises:
            SettingsError: the spec is refused.
            TaskQuarantinedError: boxes of the task failed too often in a row.
            SandboxError: no box could be started, or the attempt is over.
        """
        if self._stock.closed:
            raise SandboxError("the pool of sandboxes has ended")
        if (why := self._quarantined.get(user.task_id)) is not None:
            raise TaskQuarantinedError(why)
        self._know(user)
        self._withdraw(user.session)
        demand = self._stock.demand(spec, snapshot, user)
        request = BoxRequest(user, number, demand, further=user.session in self._leases)
        self._stock.ask(request)
        self._stock.balance()
        try:
            with waiting(f"box({user.trajectory_id})"):
                return await request.granted
        except asyncio.CancelledError:
            self._stock.drop(request)
            granted = request.granted
            if not granted.cancelled() and granted.done() and granted.exception() is None:
                self._give_back(granted.result(), number)
            raise

    def release(self, session: str, killed_by: str = "") -> None:
        """End all boxes of an attempt, and what it waits for or was expected to; does not wait.

        Args:
            session: name of this run of the attempt.
            killed_by: what ended the attempt's lease early.
        """
        self._withdraw(session)
        self._users.pop(session, None)
        self._stop(self._deadlines.pop(session, None))
        for request in [each for each in self._stock.requests if each.user.session == session]:
            self._stock.drop(request)
            self._refuse(request, SandboxError(_OVER))
        for number, box in list(self._leases.get(session, {}).items()):
            self._give_back(box, number, killed_by)
        self._stock.balance()

    async def close(self) -> None:
        """End all boxes; return once nothing of them is left and every record is reported."""
        self._stock.closed = True
        for timer in (*self._holders.values(), *self._deadlines.values()):
            timer.cancel()
        for session in list(self._users):
            self.release(session)
        await self._stock.close()

    def _know(self, user: BoxUser) -> None:
        self._users.setdefault(user.session, user)
        if user.holder not in self._holders:
            self.renew(user.holder)

    def _withdraw(self, session: str) -> None:
        """Take back what is expected of an attempt."""
        if (key := self._expected.pop(session, None)) is not None:
            self._stock.unexpect(session, key)

    async def _hand_out(self, box: PooledBox, request: BoxRequest) -> None:
        """Lease a box to the attempt that waits for it, if the box answers."""
        if not await box.healthy(self._settings.health_s):
            self._stock.end(box, HEALTH)
            request.unhealthy += 1
            if request.unhealthy > 1:
                self._give_up(request, SandboxError("two sandboxes in a row did not answer"))
            elif not request.granted.done():
                self._stock.ask(request, first=True)
        elif request.granted.done() or request.user.session not in self._users:
            self._stock.put_back(box)
            self._refuse(request, SandboxError(_OVER))
        else:
            self._lease(box, request)
        self._stock.balance()

    def _lease(self, box: PooledBox, request: BoxRequest) -> None:
        loop, user = asyncio.get_running_loop(), request.user
        box.lease(user, loop.time() - request.began)
        self._leases.setdefault(user.session, {})[request.number] = box
        if user.session not in self._deadlines and math.isfinite(user.lease_s):
            limit = loop.call_later(user.lease_s, self.release, user.session, LEASE)
            self._deadlines[user.session] = limit
        request.granted.set_result(box)

    def _holds(self, box: PooledBox, number: int) -> bool:
        assert box.user is not None
        return self._leases.get(box.user.session, {}).get(number) is box

    def _give_back(
        self, box: PooledBox, number: int, killed_by: str = "", error: str | None = None
    ) -> asyncio.Task[None]:
        """End a leased box; the task is done when nothing of it is left."""
        user = box.user
        assert user is not None, "the box is leased"
        held = self._leases[user.session]
        del held[number]
        if not held:
            del self._leases[user.session]
        if not box.alive:  # it ended before it was given back
            killed_by = killed_by or box.cause()
            box.record.error = error or "the sandbox ended by itself"
        if killed_by == FAILURE:
            self._blame(user.task_id, box.record.error or killed_by)
        elif not killed_by:
            self._failures.pop(user.task_id, None)
        return self._stock.end(box, killed_by)

    def _give_up(self, request: BoxRequest, error: Exception) -> None:
        """Refuse a request after failures of boxes."""
        task = request.user.task_id
        if not isinstance(error, SettingsError):
            self._blame(task, one_line(error))
        if (why := self._quarantined.get(task)) is not None:
            error = TaskQuarantinedError(why)
        self._refuse(request, error)

    def _refuse(self, request: BoxRequest, error: Exception) -> None:
        if not request.granted.done():
            request.granted.set_exception(error)
            request.granted.exception()  # the caller may be gone

    def _blame(self, task_id: str, error: str) -> None:
        """Count a failure of a task's box; the task is quarantined after too many in a row."""
        failed = self._failures[task_id] = self._failures.get(task_id, 0) + 1
        if failed >= self._settings.failures:
            self._quarantined[task_id] = (
                f"{failed} sandboxes of task {task_id} failed in a row; the last one: {error}"
            )

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
