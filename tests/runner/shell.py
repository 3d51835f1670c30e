"""`rollart` as a process that tests read, kill and wait for."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self
from uuid import uuid4

from tests.cli.shell import COMMAND

ROOT = Path(__file__).parents[2]
_MARK = "ROLLART_TEST_MARK"
_AGENTS = (
    b"ray::DashboardAgent",
    b"ray::RuntimeEnvAgent",
    b"/agent.py",
    b"/runtime_env/agent/main.py",
)


class Started(Protocol):
    """What a shell uses of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...


class Shell:
    """One command in a session of its own, like one in a terminal; its output line by line."""

    def __init__(
        self,
        *arguments: str,
        store: str | Path,
        through: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `rollart`, or another form of it, with arguments; `through` runs the command."""
        self._command = command
        self._mark = uuid4().hex
        more = {**(environment or {}), "ROLLART_STORE": str(store), _MARK: self._mark}
        self._process = self._start(through, arguments, {**os.environ, **more})
        self.said = ""

    def _start(
        self, through: Sequence[str], arguments: Sequence[str], environment: dict[str, str]
    ) -> "Started":
        return subprocess.Popen(
            [*through, *self._command, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> None:
        """Read until a line holds a text."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line
            if text in line:
                return
        raise AssertionError(f"it ended before it said {text!r}:\n{self.said}")

    def wait_until(self, holds: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Ask again and again, while the command runs, until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < end, f"it did not come to hold in {seconds:g} s:\n{self.said}"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, and only to the command itself."""
        os.kill(self.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """What Ctrl-C does: SIGINT to all processes in the foreground."""
        os.killpg(self.pid, signal.SIGINT)

    def end(self) -> int:
        """Read to the end; the exit code."""
        assert self._process.stdout is not None
        self.said += self._process.stdout.read()
        return self._process.wait()

    def processes(self) -> list[int]:
        """Processes that it started and that live, itself included."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._started(path)]

    def _started(self, process: Path) -> bool:
        try:
            return f"{_MARK}={self._mark}".encode() in (process / "environ").read_bytes()
        except OSError:
            return False  # it has gone meanwhile

    def wait_until_all_are_gone(self, seconds: float) -> list[int]:
        """Processes that are left after so long; what the kernel says of each ends the wait.

        Two idle agents of Ray's own do not count: where Ray was killed with the driver, they try
        for a minute to report that, to whom is gone too.
        """
        poll = select.poll()
        watched = {}
        for pid in self.processes():
            try:
                if not _is_agent(pid):
                    watched[os.pidfd_open(pid)] = pid
            except (ProcessLookupError, FileNotFoundError):
                continue
        for pidfd in watched:
            poll.register(pidfd, select.POLLIN)
        while watched and (ended := poll.poll(seconds * 1000)):
            for pidfd, _ in ended:
                poll.unregister(pidfd)
                os.close(pidfd)
                del watched[pidfd]
        for pidfd in watched:
            os.close(pidfd)
        return list(watched.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind, whatever the test did."""
        if self._process.poll() is None:
            self._process.kill()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _is_agent(pid: int) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return any(agent in command for agent in _AGENTS)


def said_by(*arguments: str, store: str | Path) -> tuple[int, str]:
    """Exit code and output of a command that ends by itself."""
    with Shell(*arguments, store=store) as shell:
        return shell.end(), shell.said
