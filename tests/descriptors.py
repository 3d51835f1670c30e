"""Which files and sockets this process has open, for tests that nothing is left open."""

import gc
import os


def open_descriptors() -> set[tuple[int, str]]:
    """Return (number, file) of each open descriptor, without those of garbage of any test."""
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((int(number), os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # that of the listing itself
            continue
    return found


def left_open(before: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return what is open now and was not before, if more is open.

    Others of earlier tests may have been closed, or reopened by threads that these left.
    """
    now = open_descriptors()
    return now - before if len(now) > len(before) else set()
