"""The thread that reports every open wait of this process.

Waits of threads (`blocked`) and of event loops (`control.loop.waits`) have names. A process that
takes part in a run calls `report_waits` once; a thread then writes all its waits to a file
(`store.waits`), without the help of the process's event loops, of other processes or of the tables.
It also names the line in which a loop is stuck.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from rollart_flow.blocked import blocked, blocking
from rollart_flow.control.loop.waits import every_loop
from rollart_flow.resources.logs import driver_log, keep_log
from rollart_flow.store.owner import Owner
from rollart_flow.store.waits import PERIOD_S, NamedWait, begin_waits, clear_waits, write_waits

_SHOWN = 20
"""Maximum number of waits in a report."""
_LIBRARIES = ("site-packages", "lib/python", "<frozen")
"""Parts of the paths of code that is not named as the place where a loop is stuck."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The name of the work of a thread, with the line that it is in."""

    name: str
    thread: int

    def __str__(self) -> str:
        frames = sys._current_frames()  # no public function gives them
        return f"{self.name}, in {_place(frames.get(self.thread))}"


def working(name: str) -> AbstractContextManager[None]:
    """Name the work of this thread for the duration of the block; reports add the line it is in."""
    return blocking(_Work(name, threading.get_ident()))


def open_waits() -> list[NamedWait]:
    """Every open wait of the threads and loops of this process, the longest first."""
    waits = [NamedWait(name, seconds) for name, seconds in blocked()]
    for loop, named in every_loop():
        waits += [NamedWait(wait.name, loop.time() - wait.since_s) for wait in named]
    return sorted(waits, key=lambda wait: -wait.seconds)


class _Beat:
    """The last turn of one event loop that this process has seen."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seen_s = time.monotonic()
        self.asked = False
        # Where a loop does not tell its thread, its first turn does.
        self.thread: int | None = getattr(loop, "_thread_id", None)

    def ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop note its next turn, which may be over before this returns."""
        self.asked = True
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(self.turn)

    def turn(self) -> None:
        """Note a turn; called in the loop."""
        self.seen_s, self.asked = time.monotonic(), False
        self.thread = threading.get_ident()

    def stuck(self) -> NamedWait | None:
        """The line in which the loop has been stuck for a period, or None if it turns."""
        seconds = time.monotonic() - self.seen_s
        if not self.asked or seconds < PERIOD_S:
            return None
        frames = sys._current_frames()  # no public function gives them
        frame = None if self.thread is None else frames.get(self.thread)
        return NamedWait(f"event loop, stuck in {_place(frame)}", seconds)


def _place(frame: FrameType | None) -> str:
    """The innermost line outside libraries, or else the innermost line."""
    inner = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(part in name for part in _LIBRARIES):
            return f"{name}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return "code that is not Python's" if inner is None else f"{inner.f_code.co_filename}"


_Pids = Callable[[], Sequence[int]]
_others: dict[str, _Pids] = {}
"""Processes that cannot report for themselves, by name."""


def report_for(process: str, pids: _Pids) -> None:
    """Let this process report under a name that others are alive, which it has started."""
    _others[process] = pids


class WaitReporter:
    """Thread that writes the waits of this process every `PERIOD_S`."""

    def __init__(self, run: str, process: str) -> None:
        self._run = run
        self._process = process
        self._over = threading.Event()
        self._beats: dict[int, _Beat] = {}
        self._thread = threading.Thread(target=self._report, name="waits", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, unless the file system keeps it."""
        self._over.set()
        self._thread.join(PERIOD_S)

    def _report(self) -> None:
        while not self._over.wait(PERIOD_S):
            with suppress(OSError, RuntimeError):  # a loop was added meanwhile: see the next period
                waits = [*self._stuck(), *open_waits()]
                write_waits(self._run, self._process, waits[:_SHOWN])
                for name, pids in list(_others.items()):
                    for pid in pids():
                        write_waits(self._run, name, (), Owner.of(pid))

    def _stuck(self) -> list[NamedWait]:
        """Loops that have not turned since they were asked a period ago; ask every loop again."""
        stuck = []
        for loop, _ in every_loop():
            beat = self._beats.setdefault(id(loop), _Beat(loop))
            if (wait := beat.stuck()) is not None:
                stuck.append(wait)
            if not beat.asked:
                beat.ask(loop)
        return stuck


_reporter: list[WaitReporter] = []
"""The only reporter of this process, if it has one."""


def report_waits(run: str, process: str) -> None:
    """Report the waits of this process under a name, until it ends; only the first call counts.

    What the process prints and logs is kept in the run's folder from then on.
    """
    if not _reporter:
        keep_log(run, process)
        _reporter.append(WaitReporter(run, process))


@contextmanager
def reporting_waits(run: str, process: str) -> Iterator[None]:
    """Report the waits of this process for the duration of the block."""
    if _reporter:
        yield
        return
    _reporter.append(WaitReporter(run, process))
    try:
        yield
    finally:
        _reporter.pop().close()


@contextmanager
def driver_waits(run: str) -> Iterator[None]:
    """Let the processes of a run report their waits for the duration of the block, this one too."""
    begin_waits(run)
    with driver_log(run), reporting_waits(run, "driver"):
        try:
            yield
        finally:
            _others.clear()
            clear_waits(run)
