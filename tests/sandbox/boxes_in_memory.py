"""Boxes that are objects of the test, with starts and answers that take virtual time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.base import (
    MAX_READ_BYTES,
    CommandResult,
    KilledBy,
    Sandbox,
    SandboxSnapshot,
    SandboxSpec,
)
from rollart_flow.sandbox.pool import SandboxPool
from rollart_flow.sandbox.pool_boxes import BoxRecord, BoxUser
from rollart_flow.sandbox.pool_demand import PoolSettings

START_S, ANSWER_S = 1.0, 0.01


class BoxWithoutFiles(Sandbox):
    """A box whose files no test asks for."""

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        raise NotImplementedError

    async def write(self, path: str, data: bytes) -> None:
        raise NotImplementedError

    async def upload(self, source: Path, path: str) -> None:
        raise NotImplementedError

    async def download(self, path: str, target: Path) -> None:
        raise NotImplementedError

    async def snapshot(self) -> SandboxSnapshot:
        raise NotImplementedError

    async def kill_all(self) -> None:
        raise NotImplementedError


class MemoryBox(BoxWithoutFiles):
    """A box without processes; a command "sleep N" takes N seconds, "die" ends the box."""

    def __init__(self, host: "BoxFactory", spec: SandboxSpec) -> None:
        self.host, self.spec = host, spec
        self.living, self.silent, self.left = True, False, 0
        self.limit = KilledBy.NOTHING

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        await asyncio.sleep(ANSWER_S)
        if command == "die":
            self.living = False
        name, _, seconds = str(command).partition(" ")
        if name == "sleep":
            await asyncio.sleep(float(seconds))
        if name == "leave":
            self.left += 1
        self._check()
        return CommandResult(0, "done", "", 0.5, KilledBy.NOTHING, 12.0)

    def _check(self) -> None:
        if not self.living:
            raise SandboxError("the sandbox has ended: it died")

    async def processes(self) -> int:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(ANSWER_S)
        self._check()
        return self.left

    async def close(self) -> None:
        await asyncio.sleep(ANSWER_S)
        self.living = False
        self.host.open.discard(self)

    @property
    def alive(self) -> bool:
        return self.living

    @property
    def killed_by(self) -> KilledBy:
        return self.limit


class BoxFactory:
    """Starts boxes of memory, and fails as often as it is told to."""

    def __init__(self) -> None:
        self.open: set[MemoryBox] = set()
        self.made: list[MemoryBox] = []
        self.starts: list[float] = []
        self.at_once = self.most_at_once = 0
        self.failing: list[Exception] = []
        """Errors of the next starts."""
        self.prepare: Callable[[MemoryBox], object] = lambda box: None

    async def __call__(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        self.starts.append(asyncio.get_running_loop().time())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(START_S)
            if self.failing:
                raise self.failing.pop(0)
        finally:
            self.at_once -= 1
        box = MemoryBox(self, spec)
        self.prepare(box)
        self.open.add(box)
        self.made.append(box)
        return box


def now() -> datetime:
    """The loop's time as a date."""
    return datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time())


class Pooled:
    """A pool over boxes of memory, with the records that it reported."""

    def __init__(self, **settings: object) -> None:
        self.factory = BoxFactory()
        self.records: list[BoxRecord] = []
        chosen = PoolSettings(**{"name": "pool", "node": "here", **settings})  # type: ignore[arg-type]
        self.pool = SandboxPool(self.factory, chosen, self.records.append, now)

    async def close(self) -> None:
        await self.pool.close()
        assert not self.factory.open
        assert len(self.pool) == 0
        assert len({record.sandbox_id for record in self.records}) == len(self.records)
        assert all(record.ended_at is not None for record in self.records)


def user(
    number: int = 0, *, task: str = "task", holder: str = "h", lease_s: float = 1e6
) -> BoxUser:
    return BoxUser(
        session=f"s{number}",
        trajectory_id=f"t{number}",
        task_id=task,
        domain="domain",
        holder=holder,
        lease_s=lease_s,
    )
