"""Handlers that start programs which try to outlive them."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

WITNESS = "witness"
"""Name of the abstract socket, in the request, to which each program connects once it runs: the
connection is open for as long as the program lives."""


def _live(address: str) -> None:
    """Tell that this program runs, and never end; a signal that can be ignored is."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    line = socket.socket(socket.AF_UNIX)
    line.connect("\0" + address)
    line.send(b"x")
    while True:
        time.sleep(3600)


def _forked(then: Callable[[], None]) -> None:
    if not os.fork():
        then()
        os._exit(0)


def child(address: str) -> None:
    _forked(lambda: _live(address))


def session(address: str) -> None:
    def run() -> None:
        os.setsid()
        _live(address)

    _forked(run)


def daemon(address: str) -> None:
    """`setsid` and a double fork, as programs become daemons."""

    def first() -> None:
        os.setsid()
        _forked(lambda: _live(address))

    _forked(first)


def program(address: str) -> None:
    """Another program, in a session of its own, that forks further."""
    code = f"from tests.isolation.hostile import daemon; daemon({address!r}); daemon({address!r})"
    subprocess.run([sys.executable, "-c", code], start_new_session=True, check=True)


def tree(address: str) -> None:
    """Five generations, each in a session of its own."""

    def generation(left: int) -> None:
        os.setsid()
        if left:
            _forked(lambda: generation(left - 1))
        _live(address)

    _forked(lambda: generation(4))


def runner(address: str) -> None:
    """A process that forks and ends, again and again, so that its id changes all the time."""

    def run() -> None:
        os.setsid()
        line = socket.socket(socket.AF_UNIX)
        line.connect("\0" + address)
        line.send(b"x")
        while True:
            if os.fork():
                os._exit(0)

    _forked(run)


def undying(address: str) -> None:
    """A process that does not ask to be killed with its parent, nor lets itself be traced."""

    def run() -> None:
        libc = ctypes.CDLL(None)
        libc.prctl(1, 0)
        libc.prctl(4, 0)
        _live(address)

    _forked(run)


def none(address: str) -> None:
    """Start nothing."""


COUNTS = {"program": 2, "tree": 5}
"""Number of witnesses of a program; 1 unless it is here."""
PROGRAMS: dict[str, Callable[[str], None]] = {
    each.__name__: each for each in (child, session, daemon, program, tree, runner, undying)
}


class Hostile:
    """Starts a program of a name, and then hangs, ends, or answers."""

    def __call__(self, request: Mapping[str, Any]) -> object:
        PROGRAMS.get(request["program"], none)(request[WITNESS])
        if request["then"] == "hang":
            while True:
                pass
        if request["then"] == "end":
            os._exit(3)
        if request["then"] in ("stop leader", "kill leader"):
            stop = request["then"] == "stop leader"
            os.kill(os.getppid(), signal.SIGSTOP if stop else signal.SIGKILL)
            while True:
                pass
        return os.getpid()
