"""One box of a pool, from the beginning of its start to its end, and the row that tells of it."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rollart_flow.errors import SandboxError, SandboxFileError
from rollart_flow.sandbox.base import KilledBy, Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.box_calls import Message, box_answer
from rollart_flow.text import one_line
from rollart_flow.timeouts import timeout

Create = Callable[[SandboxSpec, SandboxSnapshot | None], Awaitable[Sandbox]]
"""Starts a box and waits until it answers, as `SandboxVariant.create` does."""
FirstBox = SandboxSpec | SandboxSnapshot
"""Settings or snapshot of the first box of an attempt, as `Domain.box` says."""
LEASE, HEALTH, FAILURE = "lease", "health", "failure"
"""Reasons for which a box may end early, beside the limits of `KilledBy`."""
_COUNT_S = 2.0
"""Longest time to count what commands left behind [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxUser:
    """The attempt that boxes are for."""

    session: str
    """Name of this run of the attempt, which may run twice at once."""
    trajectory_id: str
    task_id: str
    domain: str
    holder: str
    """Process that drives the attempt."""
    lease_s: float
    """Longest time from the attempt's first box to the end of all its boxes [s]; infinite if the
    attempt has no limit."""


@dataclass(slots=True, kw_only=True)
class BoxRecord:
    """A row of the table `sandboxes`; each field is the column of its name."""

    sandbox_id: str
    variant: str
    node: str
    pool: str
    environment_key: str
    domain: str | None
    created_at: datetime
    prewarmed: bool
    trajectory_id: str | None = None
    task_id: str | None = None
    ready_at: datetime | None = None
    leased_at: datetime | None = None
    ended_at: datetime | None = None
    wait_s: float | None = None
    execs: int = 0
    exec_s: float = 0.0
    peak_memory_mb: float | None = None
    killed_by: str = ""
    leaked: int = 0
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields by column."""
        return asdict(self)


class PooledBox:
    """A box of a pool.

    Args:
        key: digest of all that it begins with.
        record: its row, which is filled until its end.
        now: returns the present UTC time.
    """

    def __init__(self, key: str, record: BoxRecord, now: Callable[[], datetime]) -> None:
        self.key = key
        self.record = record
        self.user: BoxUser | None = None
        """The attempt that has it; None before it is handed out."""
        self._now = now
        self._box: Sandbox | None = None

    async def start(
        self, create: Create, spec: SandboxSpec, snapshot: SandboxSnapshot | None, limit_s: float
    ) -> None:
        """Start the box.

        Raises:
            SettingsError: the spec is refused.
            SandboxError: the box could not be started, or not in time.
        """
        try:
            async with timeout(limit_s):
                self._box = await create(spec, snapshot)
        except TimeoutError:
            raise SandboxError(f"the sandbox was not ready after {limit_s:g} s") from None
        self.record.ready_at = self._now()

    def lease(self, user: BoxUser, wait_s: float) -> None:
        """Hand the box out to an attempt, which waited for it."""
        self.user = user
        self.record.leased_at = self._now()
        self.record.wait_s = wait_s
        self.record.trajectory_id, self.record.task_id = user.trajectory_id, user.task_id
        self.record.domain = user.domain

    @property
    def alive(self) -> bool:
        """Whether the box can be used, as far as the last call saw."""
        return self._box is not None and self._box.alive

    async def healthy(self, limit_s: float) -> bool:
        """Whether the box answers in time."""
        return await self._count(limit_s) is not None

    async def answer(self, call: Message, data: bytes) -> tuple[Message, bytes]:
        """Answer a call of the box, and count its commands."""
        assert self._box is not None, "a box is handed out once it is ready"
        answer, found = await box_answer(self._box, call, data)
        if call["call"] == "exec" and "value" in answer:
            done = answer["value"]
            self.record.execs += 1
            self.record.exec_s += done["seconds"]
            self._remember(done["peak_memory_mb"])
        return answer, found

    def cause(self) -> str:
        """Return what ended a box that is dead though nobody closed it."""
        by = KilledBy.NOTHING if self._box is None else self._box.killed_by
        return by.value or FAILURE

    async def end(self) -> None:
        """End the box with all that it holds, and complete its row. Does not raise."""
        if self._box is not None:
            if self.user is not None and self._box.alive:
                self.record.leaked = await self._count(_COUNT_S) or 0
            self._remember(self._box.peak_memory_mb)
            try:
                await self._box.close()
            except Exception as error:  # noqa: BLE001  the row tells what may be left of the box
                self.record.error = self.record.error or f"cannot be closed: {one_line(error)}"
        self.record.ended_at = self._now()

    async def _count(self, limit_s: float) -> int | None:
        """Return the number of processes that commands left; None if the box does not answer."""
        assert self._box is not None
        try:
            async with timeout(limit_s):
                return await self._box.processes()
        except (TimeoutError, SandboxError, SandboxFileError):
            return None

    def _remember(self, memory_mb: float) -> None:
        if memory_mb:
            self.record.peak_memory_mb = max(self.record.peak_memory_mb or 0.0, memory_mb)
