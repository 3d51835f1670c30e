"""Timers of the virtual-time loop on the pages of a calendar, 32 for each second.

Setting a timer puts it on a page, and only the page of the present is sorted: what a timer costs
does not grow with how many are set, and timers far away are not looked at. The invariant: timers
are taken in the order of their time, those of one moment in the order in which they were set;
cancelled ones neither come up nor pile up.
"""

import asyncio
import heapq
from bisect import insort
from operator import attrgetter

_PAGES_PER_S = 32
_MOST_CANCELLED = 100
"""Cancelled timers that may stay, however few the others are."""

_when = attrgetter("_when")
"""As `TimerHandle.when`, without a call of Python for each comparison."""


class Calendar:
    """Timers that have not fired."""

    def __init__(self) -> None:
        self._page = -1
        """Number of the page of the present."""
        self._present: list[asyncio.TimerHandle] = []
        """What is left of that page and of those before it, in order."""
        self._later: dict[int, list[asyncio.TimerHandle]] = {}
        """By page, in the order in which they were set."""
        self._pages: list[int] = []
        """Heap of the pages that have timers."""
        self._count = 0
        self._cancelled = 0
        """At most so many of them will not fire."""

    def __len__(self) -> int:
        """Timers that are kept, cancelled ones included."""
        return self._count

    def add(self, when: float, timer: asyncio.TimerHandle) -> None:
        """Keep a timer until it fires."""
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
        """When the next timer fires; None where there is none."""
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
        """On to the next page that has timers."""
        self._page = heapq.heappop(self._pages)
        timers = self._later.pop(self._page)
        self._present = _alive(timers)
        self._present.sort(key=_when)
        self._forget(len(timers) - len(self._present))

    def _forget(self, cancelled: int) -> None:
        self._count -= cancelled
        self._cancelled -= cancelled

    def take(self, now: float) -> list[asyncio.TimerHandle]:
        """Timers that fire by now, which is not after `next` said; they are kept no more."""
        taken: list[asyncio.TimerHandle] = []
        present = self._present
        while present and present[0].when() <= now:
            taken.append(present.pop(0))
        self._count -= len(taken)
        return taken

    def cancelled(self) -> None:
        """One more that is kept will not fire; drop them all once they are as many as the others.

        Timeouts are set and cancelled all the time.
        """
        self._cancelled += 1
        if self._cancelled > _MOST_CANCELLED and self._cancelled > self._count // 2:
            self._present = _alive(self._present)
            kept = ((page, _alive(timers)) for page, timers in self._later.items())
            self._later = {page: alive for page, alive in kept if alive}
            self._pages = sorted(self._later)
            self._count = len(self._present) + sum(map(len, self._later.values()))
            self._cancelled = 0


def _alive(timers: list[asyncio.TimerHandle]) -> list[asyncio.TimerHandle]:
    return [timer for timer in timers if not timer.cancelled()]
