"""RunTracking: the process that shows a run to its trackers, as the driver sees it.

Invariant: the run never waits for a tracker while it goes on. A step is announced by a byte in a
pipe that is written without blocking; what a tracker has is decided by the tables alone, so that a
lost byte delays it to the next one. Only the end of the driver waits, for a limited time.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from shlex import quote
from typing import IO

from rollart_flow.trackers.base import Tracker
from rollart_flow.trackers.following import Tracked
from rollart_flow.trackers.process import END_S
from rollart_flow.types import Event, EventKind

_KILL_S = 5.0
"""Time that the process has to end by itself beyond its own limit [s]."""


class RunTracking:
    """The tracking process of one run; there is none where the run has no trackers."""

    def __init__(
        self,
        uri: str,
        trackers: Sequence[Tracker],
        told: Callable[[Tracked], None],
        end_s: float = END_S,
    ) -> None:
        """Start the process for a run whose folder is complete.

        Args:
            uri: address of the run.
            trackers: the trackers.
            told: called in a thread with each tracker that ended before it had the whole run.
            end_s: longest time for what is left at the end [s].
        """
        self._told, self._end_s = told, end_s
        self._open = {tracker.name for tracker in trackers}
        self._process: subprocess.Popen[bytes] | None = None
        if trackers:
            self._process = _start(uri, trackers, end_s)
            os.set_blocking(_pipe(self._process.stdin).fileno(), False)
            self._reader = threading.Thread(target=self._read, name="trackers", daemon=True)
            self._reader.start()

    def step(self) -> None:
        """Say that rows were committed. Does not wait."""
        if self._process is not None:
            with suppress(OSError):  # a full pipe has said it already; a closed one hears nothing
                os.write(_pipe(self._process.stdin).fileno(), b"\n")

    def end(self) -> None:
        """Wait until the trackers have the whole run, or their time is over."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            with suppress(OSError):
                _pipe(process.stdin).close()
            process.wait(self._end_s + _KILL_S)
        except subprocess.TimeoutExpired:
            pass  # the process hangs as a whole
        finally:
            process.kill()
            process.wait()
            self._reader.join()
            _pipe(process.stdout).close()

    def _read(self) -> None:
        assert self._process is not None
        process = self._process
        for line in _pipe(process.stdout):
            tracked = Tracked(**json.loads(line))
            self._open.discard(tracked.tracker)
            if tracked.error is not None:
                self._told(tracked)
        for name in sorted(self._open):
            self._told(Tracked(name, 0, "its process ended before it was done"))


def _start(uri: str, trackers: Sequence[Tracker], end_s: float) -> "subprocess.Popen[bytes]":
    """Start the process with all variables of this one, some of which are keys of libraries.

    Tables are read by one thread, so that reading takes no processor from the run for a moment.
    """
    module = "rollart_flow.trackers.process"
    command = [sys.executable, "-m", module, uri, str(end_s), *map(str, trackers)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is for the driver, which then ends this one in order
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "the process was started with pipes"
    return stream


def tracker_event(tracked: Tracked) -> Event:
    """Return the row of `events` for a tracker that ended early."""
    detail = {"error": tracked.error, "records": tracked.records}
    return Event(EventKind.TRACKER, tracked.tracker, detail=detail)


def tracker_note(tracked: Tracked, run: str) -> str:
    """Return the line that is shown once for a tracker that ended early."""
    again = f"rollart track {quote(run)} --track {tracked.tracker}"
    name, error = f"tracker {tracked.tracker}", str(tracked.error)
    said = error if error.startswith(f"{name} ") else f"{name}: {error}"
    return f"{said}; the run goes on, `{again}` writes the rest"
