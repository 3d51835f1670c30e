"""Reading a version while it is being published (ROLLART section 6.3): how a reader waits for it.

A publisher in the same process wakes the readers with `announce`; from another process a part is
found by looking for it, at intervals that grow with the wait. The invariant: every wait ends, since
the reader is ended or no part appears for some time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rollart_flow.errors import WeightsError

T = TypeVar("T")


class _Announcements(threading.Condition):
    """Condition of the readers of this process, and the number of parts that were announced."""

    count = 0


_ANNOUNCED = _Announcements()
_PAUSE = 0.1
"""Time until the next look, as a fraction of the wait so far: a part is found late by no more than
that."""
_SHORTEST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.2


def announce() -> None:
    """Wake the readers in this process, since a part of a version can be read."""
    with _ANNOUNCED:
        _ANNOUNCED.count += 1
        _ANNOUNCED.notify_all()


class Following:
    """One reader of a version that may still be being published; any thread may `end` it.

    Args:
        patience_s: longest time in which no part appears.
    """

    def __init__(self, patience_s: float = 60.0) -> None:
        self._patience_s = patience_s
        self._advanced = time.monotonic()
        self._ended = False
        self.waited_s = 0.0
        """Seconds in which the reader waited for the publisher."""

    def end(self) -> None:
        """Have the reader raise as soon as it has to wait."""
        with _ANNOUNCED:
            self._ended = True
            _ANNOUNCED.notify_all()

    def wait_for(self, look: Callable[[], T | None], part: str) -> T:
        """Return what `look` finds, once it finds something.

        Raises:
            WeightsError: the reader was ended, or nothing has appeared for too long.
        """
        began, waits, seen = time.monotonic(), False, _ANNOUNCED.count
        while (found := look()) is None:
            waits, now = True, time.monotonic()
            with _ANNOUNCED:
                if self._ended:
                    raise WeightsError(f"nobody waits for {part} any more")
                if now > self._advanced + self._patience_s:
                    waited = f" after {self._patience_s:g} s" if self._patience_s else ""
                    raise WeightsError(f"{part} is missing{waited}")
                pause = min(max(_PAUSE * (now - began), _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
                if _ANNOUNCED.count == seen:  # otherwise a part was announced since the look
                    _ANNOUNCED.wait(pause)
                seen = _ANNOUNCED.count
        ended = time.monotonic()
        if waits:
            self.waited_s += max(0.0, ended - max(began, self._advanced))
        self._advanced = ended
        return found
