"""The process that tracks a run: `python -m rollart_flow.trackers.process URI TRACKER...`.

The driver writes a line for each step to its standard input; the end of the input is the end of the
run. Each line of its standard output is JSON: what became of a tracker. The process has the lowest
priority and reads the tables at most once in `EVERY_S`, so that steps that follow one another
quickly share a reading. The run waits for nothing of it. It ends at the latest `END_S` after its
input, also where a tracker hangs or the driver was killed.
"""

import json
import os
import select
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TextIO

from rollart_flow.store import open_run
from rollart_flow.trackers.following import Followers, Tracked
from rollart_flow.trackers.priority import LOW, LOWEST, set_priority
from rollart_flow.trackers.registry import named_trackers

END_S = 30.0
"""Longest time for the records that are left when the run has ended [s]."""
STUCK_S = 120.0
"""Time that a tracker may take for one record before it is reported [s]."""
EVERY_S = 10.0
"""Shortest time between two readings of the tables while the run goes on [s]."""
_LINES = 4096
"""Bytes of the input that are read at once."""


class _Reports:
    """Lines of the standard output, from any thread."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._lock = out, threading.Lock()
        self.reported: set[str] = set()

    def __call__(self, tracked: Tracked) -> None:
        """Report what became of a tracker, unless it was reported as stuck before."""
        with self._lock:
            if tracked.tracker not in self.reported or tracked.error is None:
                self.reported.add(tracked.tracker)
                self._out.write(json.dumps(asdict(tracked)) + "\n")
                self._out.flush()


def _report_stuck(followers: Followers, reports: _Reports, after_s: float) -> None:
    for follower in followers:
        if follower.stuck_s() > after_s and follower.tracker.name not in reports.reported:
            said = f"it has been busy with one record for {follower.stuck_s():.0f} s"
            reports(Tracked(follower.tracker.name, follower.records, said))


def _wakes(lines: int, every_s: float) -> Iterator[None]:
    """Yield when there are lines, at most once in a time, until the input ends.

    Args:
        lines: descriptor of the input.
        every_s: shortest time from one wake to the next [s].
    """
    due, waiting = time.monotonic(), False
    while True:
        left_s = max(0.0, due - time.monotonic()) if waiting else None
        if select.select([lines], [], [], left_s)[0]:
            if not os.read(lines, _LINES):
                return
            waiting = True
        if waiting and time.monotonic() >= due:
            yield
            due, waiting = time.monotonic() + every_s, False


def main(arguments: Sequence[str]) -> None:
    """Follow a run until the input ends."""
    uri, end_s, *texts = arguments
    reports = _Reports(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what libraries print is no report
    set_priority(LOW)
    followers = Followers(open_run(uri), named_trackers(texts), reports)
    lowest = False
    for _ in _wakes(sys.stdin.fileno(), EVERY_S):
        followers.wake()
        if not lowest and all(follower.opened for follower in followers):
            set_priority(LOWEST)
            lowest = True
        _report_stuck(followers, reports, STUCK_S)
    set_priority(LOW)
    deadline = time.monotonic() + float(end_s)
    followers.wake(ending=True)
    for follower in followers:
        if not follower.join(max(0.0, deadline - time.monotonic())):
            said = f"it was not done {float(end_s):g} s after the end of the run"
            reports(Tracked(follower.tracker.name, follower.records, said))
    sys.stdout.flush()
    os._exit(0)  # threads and processes of a library that hangs end here too


if __name__ == "__main__":
    main(sys.argv[1:])
