"""`rollart` in processes that are forked from one which has imported everything.

They start in milliseconds instead of seconds, which are most of what a small run takes. The server
of `multiprocessing` that forks them starts with the first one. It has no threads: polars, torch and
Arrow start theirs when they are used.
"""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from functools import cached_property
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from rollart_flow.cli import main
from tests.chaos.hooks import wiretap
from tests.runner.shell import Shell, Started

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.chaos.preload"])
MARK = "ROLLART_CHAOS_ROW"
"""Environment variable with the mark of a scenario; forked processes have it as their name."""


class ForkedShell(Shell):
    """A command of the inline executor, in a session of its own."""

    def _start(
        self, through: Sequence[str], arguments: Sequence[str], environment: dict[str, str]
    ) -> Started:
        assert not through, "a forked process runs through no other command"
        return _Forked(arguments, environment)

    def processes(self) -> list[int]:
        alive = [] if self._process.poll() is not None else [self.pid]
        return [*alive, *super().processes()]


class _Forked:
    """A forked command, which is `Started`."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        reader, writer = FORKING.Pipe(duplex=False)
        self._process = FORKING.Process(target=_command, args=(arguments, environment, writer))
        self._process.start()
        writer.close()
        self._reader = reader

    @cached_property
    def stdout(self) -> IO[str]:
        with self._reader:
            return os.fdopen(os.dup(self._reader.fileno()))

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def use_server_of_parent() -> None:
    """Let this process, which is forked itself, fork others from the same server.

    `multiprocessing` means to do so and hands the address down, but starts a server for each.
    """
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]


def detach(mark: str, output: int) -> None:
    """Begin a session of this process's own, with its output in a file that is open."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    Path("/proc/self/comm").write_text(mark)


def _command(arguments: Sequence[str], environment: dict[str, str], output: Connection) -> None:
    detach(environment.get(MARK, "rollart"), output.fileno())
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    wiretap.install()
    sys.argv[1:] = arguments
    sys.exit(main())
