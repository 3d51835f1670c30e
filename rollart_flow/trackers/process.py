"""The process that tracks a run: `python -m rollart_flow.trackers.process URI TRACKER...`.

The driver writes a line for each step to its standard input; the end of the input is the end of the
run. Each line of its standard output is JSON: what became of a tracker. The process runs at low
priority, holds nothing that the run waits for, and ends at the latest `END_S` after its input, also
where a tracker hangs or the driver was killed.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rollart_flow.store import open_run
from rollart_flow.trackers.following import Follower, Tracked, follow
from rollart_flow.trackers.registry import named_trackers

END_S = 30.0
"""Longest time for the records that are left when the run has ended [s]."""
STUCK_S = 120.0
"""Time that a tracker may take for one record before it is reported [s]."""
_NICE = 10
"""Priority below that of the run."""


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


def _report_stuck(followers: Sequence[Follower], reports: _Reports, after_s: float) -> None:
    for follower in followers:
        if follower.stuck_s() > after_s and follower.tracker.name not in reports.reported:
            said = f"it has been busy with one record for {follower.stuck_s():.0f} s"
            reports(Tracked(follower.tracker.name, follower.records, said))


def main(arguments: Sequence[str]) -> None:
    """Follow a run until the input ends."""
    uri, end_s, *texts = arguments
    reports = _Reports(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what libraries print is no report
    os.nice(_NICE)
    followers = follow(open_run(uri), named_trackers(texts), reports)
    for _ in sys.stdin:
        for follower in followers:
            follower.wake()
        _report_stuck(followers, reports, STUCK_S)
    deadline = time.monotonic() + float(end_s)
    for follower in followers:
        follower.wake(ending=True)
    for follower in followers:
        if not follower.join(max(0.0, deadline - time.monotonic())):
            said = f"it was not done {float(end_s):g} s after the end of the run"
            reports(Tracked(follower.tracker.name, follower.records, said))
    sys.stdout.flush()
    os._exit(0)  # threads and processes of a library that hangs end here too


if __name__ == "__main__":
    main(sys.argv[1:])
