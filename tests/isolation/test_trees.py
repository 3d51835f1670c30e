"""Whatever an isolated process starts ends with it, however it tries to get away."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rollart_flow.isolation import process as module
from rollart_flow.isolation.child import children_of
from rollart_flow.isolation.process import Isolated, IsolatedError
from tests.isolation.hostile import COUNTS, PROGRAMS, WITNESS

HANDLER = "tests.isolation.hostile:Hostile"


class Witnesses:
    """The programs that run, each by a connection that the kernel closes when it ends."""

    def __init__(self) -> None:
        self.address = f"rollart-{os.getpid()}-{id(self)}"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind("\0" + self.address)
        self._server.listen()
        self._server.settimeout(60)
        self._lines: list[socket.socket] = []

    def wait(self, count: int) -> None:
        """Wait until this many programs run."""
        for _ in range(count):
            line, _ = self._server.accept()
            line.settimeout(60)
            assert line.recv(1) == b"x"
            self._lines.append(line)

    def assert_gone(self) -> None:
        """Wait until all programs have ended; TimeoutError if one lives on."""
        while self._lines:
            with self._lines.pop() as line:
                assert line.recv(1) == b""

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def witnesses() -> Iterator[Witnesses]:
    found = Witnesses()
    yield found
    found.close()


def request(program: str, then: str, witnesses: Witnesses) -> dict[str, object]:
    return {"program": program, "then": then, WITNESS: witnesses.address}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cancelled_call_leaves_nothing(program: str, witnesses: Witnesses) -> None:
    async def main() -> None:
        process = await Isolated.start(HANDLER)
        call = asyncio.ensure_future(process.call(request(program, "hang", witnesses)))
        await asyncio.to_thread(witnesses.wait, COUNTS.get(program, 1))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert not process.alive

    asyncio.run(main())
    witnesses.assert_gone()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_handler_that_ends_leaves_nothing(program: str, witnesses: Witnesses) -> None:
    async def main() -> None:
        process = await Isolated.start(HANDLER)
        await process.call(request(program, "answer", witnesses))
        await asyncio.to_thread(witnesses.wait, COUNTS.get(program, 1))
        with pytest.raises(IsolatedError, match=r"ended with exit status 3$"):
            await process.call(request("none", "end", witnesses))

    asyncio.run(main())
    witnesses.assert_gone()


PARENT = """
import asyncio, os, signal, sys
from rollart_flow.isolation.child import children_of
from rollart_flow.isolation.process import Isolated
async def main():
    process = await Isolated.start("tests.isolation.hostile:Hostile")
    await process.call({"program": sys.argv[1], "then": sys.argv[2], "witness": sys.argv[3]})
    sys.stdin.read()
    for child in children_of(os.getpid()):
        os.kill(child, signal.SIGKILL)
    os._exit(1)
asyncio.run(main())
"""
"""A process that ends as soon as its input does, and kills its children first, as Ray's do."""


def parent(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)


@pytest.mark.parametrize("then", ["hang", "answer"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_parent_that_is_killed_leaves_nothing(
    program: str, then: str, witnesses: Witnesses
) -> None:
    with parent(program, then, witnesses.address) as process:
        witnesses.wait(COUNTS.get(program, 1))
        process.kill()
    witnesses.assert_gone()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_parent_that_kills_its_children_and_ends_leaves_nothing(
    program: str, witnesses: Witnesses
) -> None:
    with parent(program, "answer", witnesses.address) as process:
        witnesses.wait(COUNTS.get(program, 1))
        process.communicate()
    witnesses.assert_gone()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_handler_that_kills_its_leader_leaves_nothing(program: str, witnesses: Witnesses) -> None:
    async def main() -> None:
        process = await Isolated.start(HANDLER)
        await process.call(request(program, "answer", witnesses))
        await asyncio.to_thread(witnesses.wait, COUNTS.get(program, 1))
        with pytest.raises(IsolatedError, match="killed by SIGKILL"):
            await process.call(request("none", "kill leader", witnesses))

    asyncio.run(main())
    witnesses.assert_gone()


def test_a_leader_that_was_stopped_makes_no_call_wait(
    witnesses: Witnesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEADER_S", 0.0)

    async def main() -> None:
        process = await Isolated.start(HANDLER)
        call = asyncio.ensure_future(process.call(request("daemon", "stop leader", witnesses)))
        await asyncio.to_thread(witnesses.wait, 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(main())
    witnesses.assert_gone()


send_to_leader = Isolated._signal


def killing_only(process: Isolated, number: signal.Signals) -> None:
    """Ask no leader to end what the handler started."""
    if number == signal.SIGKILL:
        send_to_leader(process, number)


def cancel_without_leaders(witnesses: Witnesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel a call of which something lives on, and which no leader ends."""
    monkeypatch.setattr(module, "_LEADER_S", 0.0)
    monkeypatch.setattr(Isolated, "_signal", killing_only)

    async def main() -> None:
        process = await Isolated.start(HANDLER)
        call = asyncio.ensure_future(process.call(request("undying", "stop leader", witnesses)))
        await asyncio.to_thread(witnesses.wait, 1)
        os.kill(process.pid, signal.SIGSTOP)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(main())


def test_a_descendant_that_moves_while_the_tree_is_read_is_killed_too(
    witnesses: Witnesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def moving(pid: int) -> list[int]:
        read.append(pid)
        return [] if len(read) == 2 else children_of(pid)

    monkeypatch.setattr(module, "children_of", moving)
    cancel_without_leaders(witnesses, monkeypatch)
    witnesses.assert_gone()


def test_what_moves_to_the_leader_while_the_tree_is_read_is_killed_too(
    witnesses: Witnesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's children end after they were read: nothing is below them any more, and what was
    there has moved to where it has not been looked for."""
    ended: list[int] = []

    def ending(pid: int) -> list[int]:
        found = children_of(pid)
        if not ended:
            ended.extend(found)
            for child in found:
                pidfd = os.pidfd_open(child)
                os.kill(child, signal.SIGKILL)
                assert select.select([pidfd], [], [], 60)[0]
                os.close(pidfd)
        return found

    monkeypatch.setattr(module, "children_of", ending)
    cancel_without_leaders(witnesses, monkeypatch)
    assert ended
    witnesses.assert_gone()
