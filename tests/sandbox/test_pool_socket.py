"""The socket of a pool: who may connect, what ends a connection, and what ends with one."""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.sandbox.box_calls import CalledBoxes, Message, framed
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.sandbox.pool import SandboxPool
from rollart_flow.sandbox.pool_boxes import BoxRecord
from rollart_flow.sandbox.pool_demand import PoolSettings
from rollart_flow.sandbox.pool_line import PoolLine, receive_frame, send_frame
from rollart_flow.sandbox.pool_socket import PoolSocket, sweep_sockets
from tests.sandbox.boxes_in_memory import user
from tests.sandbox.probes import SMALL

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


class Served:
    """A pool with a socket, and the calls that came through the parent instead."""

    def __init__(self) -> None:
        self.record: asyncio.Future[BoxRecord] = asyncio.get_running_loop().create_future()
        """That of the first box that has ended."""
        now = partial(datetime.now, UTC)
        self.pool = SandboxPool(VARIANT.create, PoolSettings(), self._report, now)
        self.socket = PoolSocket(self.pool)
        self.asked: list[str] = []
        self._loop = asyncio.get_running_loop()

    def _report(self, record: BoxRecord) -> None:
        if not self.record.done():
            self.record.set_result(record)

    def ask(self, call: Message, data: bytes) -> tuple[Message, bytes]:
        """Answer a call as the parent does, to a thread."""
        return asyncio.run_coroutine_threadsafe(self._answer(call, data), self._loop).result()

    async def _answer(self, call: Message, data: bytes) -> tuple[Message, bytes]:
        self.asked.append(call["call"])
        answer, found = await self.pool.answer(user(), call, data)
        if call.get("direct") and "value" in answer:
            answer = {"value": await self.socket.offer(user().session)}
        return answer, found

    async def offer(self) -> Mapping[str, str]:
        offer = await self.socket.offer("s0")
        assert offer is not None
        return offer

    async def close(self) -> None:
        await self.socket.close()
        await self.pool.close()


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    pool = Served()
    try:
        yield pool
    finally:
        await pool.close()


def test_calls_go_by_the_socket_after_the_first_and_the_boxes_end_with_it() -> None:
    def use(pool: Served) -> None:
        line = PoolLine(pool.ask)
        box = CalledBoxes(line).open(SMALL)
        assert box.exec("echo out; exit 3").stdout == "out\n"
        box.write("file", b"\0\xff" * 1_000_000)
        assert len(box.read("file")) == 2_000_000
        assert pool.asked == ["open"]
        line.close()
        line.close()

    async def test() -> None:
        async with served() as pool:
            await asyncio.to_thread(use, pool)
            async with asyncio.timeout(20):
                assert (await pool.record).execs == 1
            assert not pool.socket.lines
            assert len(pool.pool) == 0

    asyncio.run(test())


def test_a_new_pool_is_called_by_a_new_connection() -> None:
    def use(first: Served, second: Served, loop: asyncio.AbstractEventLoop) -> None:
        now = first
        line = PoolLine(lambda call, data: now.ask(call, data))
        boxes = CalledBoxes(line)
        old = boxes.open(SMALL)
        assert old.exec("true").ok
        asyncio.run_coroutine_threadsafe(first.close(), loop).result()
        with pytest.raises(Exception, match="the sandbox has ended: its pool is gone"):
            old.exec("true")
        assert not old.alive
        now = second
        assert boxes.open(SMALL).exec("echo again").stdout == "again\n"
        assert second.asked == ["open"]
        line.close()

    async def test() -> None:
        async with served() as first, served() as second:
            await asyncio.to_thread(use, first, second, asyncio.get_running_loop())

    asyncio.run(test())


@pytest.mark.parametrize(
    "message",
    [
        {"session": "s0", "key": "0" * 64},
        {"session": "s1", "key": None},
        {"session": "s0"},
        ["s0"],
    ],
    ids=["wrong key", "no text", "no key", "no mapping"],
)
def test_a_connection_without_the_key_of_its_session_is_ended(message: Any) -> None:
    async def test() -> None:
        async with served() as pool:
            offer = await pool.offer()
            await asyncio.to_thread(refused, offer["path"], framed(message, b""))
            assert not pool.socket.lines

    asyncio.run(test())


def refused(path: str, *frames: bytes) -> None:
    """Send frames, the last of which ends the connection."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(20)
        line.connect(path)
        for number, frame in enumerate(frames):
            send_frame(line, frame)
            if number < len(frames) - 1:
                receive_frame(line)
        with pytest.raises(ConnectionError):
            receive_frame(line)


@pytest.mark.parametrize("frame", [b"\0\0\0\x02[]", b"no message", b"", framed({"call": "x"}, b"")])
def test_what_is_no_call_ends_the_connection(frame: bytes) -> None:
    async def test() -> None:
        async with served() as pool:
            offer = await pool.offer()
            greeting = framed({name: offer[name] for name in ("session", "key")}, b"")
            await asyncio.to_thread(refused, offer["path"], greeting, frame)

    asyncio.run(test())


def test_no_other_user_connects(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    program = """
import os, socket, sys
os.setuid(65534)
line = socket.socket(socket.AF_UNIX)
try:
    line.connect(sys.argv[1])
    print(line.recv(1))
except OSError as error:
    print(type(error).__name__)
"""

    async def tried(path: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, path, stdout=subprocess.PIPE
        )
        return (await process.communicate())[0].decode().strip()

    async def test() -> None:
        async with served() as pool:
            path = (await pool.offer())["path"]
            assert await tried(path) == "PermissionError"
            os.chmod(os.path.dirname(path), 0o755)
            os.chmod(path, 0o666)
            assert await tried(path) in ("b''", "ConnectionResetError")

    asyncio.run(test())


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in which the path of a socket is not too long, as that of a test may be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_what_a_dead_pool_leaves_is_swept_and_that_of_a_living_one_is_not(
    monkeypatch: pytest.MonkeyPatch, short_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    (short_path / "rollart-pool-1-1-abc").mkdir()
    (short_path / "rollart-pool-else").mkdir()

    async def test() -> None:
        async with served() as pool:
            folder = Path((await pool.offer())["path"]).parent
            sweep_sockets()
            assert {*os.listdir(short_path)} == {folder.name, "rollart-pool-else"}

    asyncio.run(test())
    assert os.listdir(short_path) == ["rollart-pool-else"]
