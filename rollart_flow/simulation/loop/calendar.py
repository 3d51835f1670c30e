"""Timers of the virtual-time loop on the pages of a calendar, 32 for each second.

Setting a timer puts it on a page, and only the page of the present is sorted: the cost of a timer
does not grow with the number of timers, and timers far away are not looked at. The invariant:
timers are taken in the order of their time, those of one moment in the order in which they were
set; cancelled timers are neither returned nor accumulated.
"""

import asyncio
import heapq
from bisect import insort
from operator import attrgetter

_PAGES_PER_S = 32
_MOST_CANCELLED = 100
"""Cancelled timers that may stay, even if fewer others are set."""

_when = attrgetter("_when")
"""The time of a timer, read without a Python call for each comparison."""


class Calendar:
    """The timers that have not fired."""

    def __init__(self) -> None:
        self._page = -1
        """Number of the present page."""
        self._present: list[asyncio.TimerHandle] = []
        """Timers of that page and of the pages before it, in order."""
        self._later: dict[int, list[asyncio.TimerHandle]] = {}
        """Timers by page, in the order in which they were set."""
        self._pages: list[int] = []
        """Heap of the pages that have timers."""
        self._count = 0
        self._cancelled = 0
        """Upper bound of the cancelled timers among them."""

    def __len__(self) -> int:
        """Number of timers, cancelled ones included."""
        return self._count

    def add(self, when: float, timer: asyncio.TimerHandle) -> None:
        """Add a timer."""
        self._count += 1
        page = int(when * _PAGES_PER_S)
        if page <= self._page:
            insort(self._present, timer, key=_when)
        elif (others := self._later.get(page)) is not None:
            others.append(timer)
        else:
            self._later[page] = [timer]
            heapq.heappush(self._pages, page)

    def next(self) -> float | None:
        """Time at which the next timer fires; None if no timer is set."""
        while True:
            while self._present:
                timer = self._present[0]
                if not timer.cancelled():
                    return timer.when()
                del self._present[0]
                self._forget(1)
            if not self._pages:
                return None
            self._turn()

    def _turn(self) -> None:
        """Turn to the next page that has timers."""
        self._page = heapq.heappop(self._pages)
        timers = self._later.pop(self._page)
        self._present = _alive(timers)
        self._present.sort(key=_when)
        self._forget(len(timers) - len(self._present))

    def _forget(self, cancelled: int) -> None:
        self._count -= cancelled
        self._cancelled -= cancelled

    def take(self, now: float) -> list[asyncio.TimerHandle]:
        """Remove and return the timers that fire by `now`, which is not after `next()`."""
        taken: list[asyncio.TimerHandle] = []
        present = self._present
        while present and present[0].when() <= now:
            taken.append(present.pop(0))
        self._count -= len(taken)
        return taken

    def cancelled(self) -> None:
        """Count one more cancelled timer; drop all cancelled ones when they outnumber the others.

        Timeouts are set and cancelled all the time.
        """
        self._cancelled += 1
        if self._cancelled > _MOST_CANCELLED and self._cancelled > self._count // 2:
            self._present = _alive(self._present)
            later = ((page, _alive(timers)) for page, timers in self._later.items())
            self._later = {page: alive for page, alive in later if alive}
            self._pages = sorted(self._later)
            self._count = len(self._present) + sum(map(len, self._later.values()))
            self._cancelled = 0


def _alive(timers: list[asyncio.TimerHandle]) -> list[asyncio.TimerHandle]:
    return [timer for timer in timers if not timer.cancelled()]
