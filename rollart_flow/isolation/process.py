"""An isolated process for code that may hang or crash, used from an event loop.

Requests and answers are JSON lines over a socket pair; no data from the process is unpickled. While
a call is open, the process may ask in turn, with bytes beside the line. The process that is started
leads, with a second leader below it that forks the one that runs the handler. It ends with all of
its descendants (`child`) if a call is cancelled (by its timeout, for example), if the handler
breaks off, or if this process dies; the kernel reports its end through a pidfd. Linux only.

Invariant: a call that is cancelled or not answered leaves no process behind: all descendants are
killed and their leader reaped before the error is raised. If the leader itself is killed, the
second one ends them soon after. A handler that finds both leaders and stops or kills them can break
this; it cannot make a call wait.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rollart_flow.errors import RollartError
from rollart_flow.isolation import child
from rollart_flow.isolation.child import children_of
from rollart_flow.isolation.environ import child_environ
from rollart_flow.timeouts import timeout

_LONGEST_ANSWER_BYTES = 64 << 20
_MOST_BYTES = 512 << 20
"""Most bytes beside a question of the process [bytes]."""
_QUESTION = b'{"ask":'
_LEADER_S = 10.0
"""Longest time for a leader to end with its descendants, before this process kills them [s]."""
_output: list[int] = [2]
"""File descriptors that processes write into, the last one counts; standard error at first."""
_SHOWN = "ROLLART_TRACEBACK"
"""Variable with which commands show tracebacks on the terminal."""
_OF_THIS_INTERPRETER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

Answering = Callable[[Any, bytes], Awaitable[tuple[object, bytes]]]
"""Answers a question of a process, with bytes beside question and answer."""


def keep_output_of_children(descriptor: int) -> None:
    """Let processes that start from now on write what they print, and tracebacks, into a file."""
    _output.append(descriptor)


@contextmanager
def children_write_to(descriptor: int) -> Iterator[None]:
    """Let processes that start in the block write what they print, and tracebacks, into a file."""
    keep_output_of_children(descriptor)
    try:
        yield
    finally:
        _output.remove(descriptor)


class IsolatedError(RollartError, RuntimeError):
    """The process answered with an error, or ended; callers convert it to their own error."""


class Isolated:
    """One process and its connection. One call at a time."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self._process = process
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._loop.add_reader(pidfd, self._on_end)

    @classmethod
    async def start(
        cls, handler: str, environ: Iterable[str] = (), python: str | None = None
    ) -> "Isolated":
        """Start a process for a handler, a callable from JSON to JSON; some 20 ms of CPU.

        Args:
            handler: `module:Class`, or `file.py:Class` for an interpreter without this library.
            environ: names of environment variables that it gets besides the usual ones
                (`child_environ`).
            python: interpreter of another virtual environment (3.9 or newer), which finds its own
                packages only; None for this one.

        Raises:
            IsolatedError: this system has no pidfd, or no process can be started.
        """
        if not hasattr(os, "pidfd_open"):
            raise IsolatedError("isolated processes need Linux; use an inline environment here")
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(handler, theirs.fileno(), environ, python)
        except OSError as error:
            ours.close()
            raise IsolatedError(f"no process can be started: {error}") from error
        isolated = cls(process, os.pidfd_open(process.pid))
        try:
            opened = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST_ANSWER_BYTES)
            isolated._streams = opened
        except BaseException:
            ours.close()
            await isolated.kill()
            raise
        return isolated

    @property
    def pid(self) -> int:
        """Process id of the leader."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process can be called again."""
        if self._streams is None or self._ended.done():
            return False
        return not self._streams[0].at_eof()  # the handler ends before its leader

    async def call(
        self, request: Mapping[str, object], answering: Answering | None = None
    ) -> object:
        """Return the handler's answer to a request; callers set a limit with `timeouts.timeout`.

        `answering` answers what the process asks meanwhile; without it, a question ends the call.
        Raises IsolatedError if the handler raised (the process lives on), or the process ended.
        """
        try:
            answer = await self._exchange(request, answering)
        except BaseException:
            await self.kill()
            raise
        if "error" in answer:
            raise IsolatedError(str(answer["error"]))
        return answer["answer"]

    async def kill(self) -> None:
        """Kill the process with all that it started, and reap it. May be called twice."""
        if not self._ended.done():
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        try:
            async with timeout(_LEADER_S):
                await asyncio.shield(self._ended)
        except TimeoutError:
            await self._kill_from_here()
            await asyncio.shield(self._ended)

    async def _exchange(
        self, request: Mapping[str, object], answering: Answering | None
    ) -> dict[str, object]:
        if self._streams is None:
            raise IsolatedError("the process was killed before")
        reader, writer = self._streams
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
            while answering is not None and line.startswith(_QUESTION):
                question, size = _question(line)
                answer, data = await answering(question, await reader.readexactly(size))
                head = json.dumps({"answer": answer, "bytes": len(data)})
                writer.write(head.encode() + b"\n")
                writer.write(data)
                await writer.drain()
                line = await reader.readline()
        except (ConnectionError, asyncio.IncompleteReadError):
            line = b""
        except ValueError as error:
            raise IsolatedError(
                f"an answer of the process was longer than {_LONGEST_ANSWER_BYTES} bytes"
            ) from error
        if not line.endswith(b"\n"):
            await asyncio.shield(self._ended)
            raise IsolatedError(_describe_end(self._process.returncode))
        return _message(line)

    def _on_end(self) -> None:
        """Reap the leader once it has ended."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        if not self._ended.done():
            self._ended.set_result(None)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended, and the pidfd will tell
            signal.pidfd_send_signal(self._pidfd, number)

    async def _kill_from_here(self) -> None:
        """Kill a leader that does not end, after its descendants.

        Orphans move to a leader, so that the tree is read until nothing below it lives. One whose
        parent ends while the tree is read can be missed, so that two readings have to be the same:
        the children of a zombie have moved before the second one.
        """
        before: list[int] | None = None
        while (below := _below(self._process.pid)) != before or any(map(_lives, below)):
            before = below
            living = [pid for pid in below if _lives(pid)]
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.gather(*map(_end_of, living))
        self._signal(signal.SIGKILL)


def _below(leader: int) -> list[int]:
    """Return the descendants of a process, zombies too."""
    pids = [leader]
    for pid in pids:
        pids += children_of(pid)
    return pids[1:]


def _lives(pid: int) -> bool:
    """Return whether a process runs or is stopped, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _end_of(pid: int) -> None:
    """Wait until a process has ended, though nobody may have reaped it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _spawn(
    handler: str, descriptor: int, environ: Iterable[str], python: str | None
) -> subprocess.Popen[bytes]:
    script = str(Path(child.__file__))
    variables = child_environ(environ)
    if len(_output) > 1 or os.environ.get(_SHOWN):
        variables[child.TRACEBACKS] = "1"
    if python is None:
        interpreter = [sys.executable]
        paths = [path or os.getcwd() for path in sys.path]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        interpreter = [python, "-I"]  # without the packages of this interpreter, or of the user
        for name in _OF_THIS_INTERPRETER:
            variables.pop(name, None)
    return subprocess.Popen(
        [*interpreter, script, str(descriptor), handler, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=_output[-1],
        stderr=_output[-1],
        pass_fds=(descriptor,),
        start_new_session=True,
        env=variables,
    )


def _question(line: bytes) -> tuple[object, int]:
    """Return what a process asks, and the number of bytes that follow."""
    try:
        message = json.loads(line)
        question, size = message["ask"], int(message["bytes"])
    except (ValueError, KeyError, TypeError):
        raise IsolatedError(f"the process wrote {line[:80]!r} where a question belongs") from None
    if not 0 <= size <= _MOST_BYTES:
        raise IsolatedError(f"the process sent {size} bytes, more than {_MOST_BYTES}")
    return question, size


def _message(line: bytes) -> dict[str, object]:
    """Parse a message of the child; refuse other output on the connection."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not message.keys() & {"answer", "error"}:
        raise IsolatedError(f"the process wrote {line[:80]!r} where an answer belongs")
    return message


def _describe_end(returncode: int) -> str:
    if returncode < 0:
        return f"the process was killed by {signal.Signals(-returncode).name}"
    return f"the process ended with exit status {returncode}"
