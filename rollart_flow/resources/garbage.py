"""Garbage collection in long-lived processes."""

import gc

_YOUNG = 20_000
"""Objects with references that are made before the young ones are looked through for cycles: some
hundred trajectories, where Python's own 700 are one or two."""


def freeze_heap() -> None:
    """Exclude all objects that live now from garbage collection, and collect younger ones seldom.

    An actor calls this once it is ready. Its imports leave some hundred thousand objects that live
    as long as the process; without this, each full collection visits them all, which takes a
    quarter of the time of a process that handles many small messages.
    """
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, middle, old)


_excluded = False
"""Whether `excluded_by_caller` has found some."""


def excluded_by_caller() -> bool:
    """Whether objects are excluded from garbage collection before a run begins in this process.

    They are counted until there are some, and not again, since many take tens of milliseconds.
    """
    global _excluded
    _excluded = _excluded or gc.get_freeze_count() > 0
    return _excluded
