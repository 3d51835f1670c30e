"""Which files and sockets this process has open, for tests that nothing is left open."""

import gc
import os
import time

_SNAPSHOTS = 100
"""How often is looked before something counts as left open."""


def open_descriptors() -> set[tuple[int, str]]:
    """Return (number, file) of each open descriptor, without those of garbage of any test.

    Files of /proc are left out: threads of libraries (Ray's) read them in between at any time.
    """
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of the listing itself
            continue
        if not name.startswith("/proc/"):
            found.add((int(number), name))
    return found


def left_open(before: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return what stays open and was not before, if more is open.

    Others of earlier tests may have been closed, or reopened by threads that these left; what such
    a thread has open for a moment only is gone when looked at again.
    """
    staying = _more(before)
    for _ in range(_SNAPSHOTS):
        if not staying:
            return set()
        time.sleep(0.01)
        staying &= _more(before)
    return staying


def _more(before: set[tuple[int, str]]) -> set[tuple[int, str]]:
    now = open_descriptors()
    return now - before if len(now) > len(before) else set()
