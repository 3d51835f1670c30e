"""Reading a version while it is being published (ROLLART section 6.3): how a reader waits for it.

A publisher in the same process wakes the readers with `announce`; from another process a part is
found by looking for it, at growing intervals. The invariant: every wait ends, since the reader is
ended or no part appears for some time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rollart_flow.errors import WeightsError

T = TypeVar("T")
_ANNOUNCED = threading.Condition()
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.2
"""Longest time between two looks; the first ones follow each other faster."""


def announce() -> None:
    """Wake the readers in this process, since a part of a version can be read."""
    with _ANNOUNCED:
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
        began, pause = time.monotonic(), _FIRST_PAUSE_S
        while (found := look()) is None:
            with _ANNOUNCED:
                if self._ended:
                    raise WeightsError(f"nobody waits for {part} any more")
                if time.monotonic() > self._advanced + self._patience_s:
                    waited = f" after {self._patience_s:g} s" if self._patience_s else ""
                    raise WeightsError(f"{part} is missing{waited}")
                _ANNOUNCED.wait(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)
        ended = time.monotonic()
        if pause > _FIRST_PAUSE_S:
            self.waited_s += max(0.0, ended - max(began, self._advanced))
        self._advanced = ended
        return found
