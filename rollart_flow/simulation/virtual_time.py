"""An event loop whose clock jumps to the next timer: no real sleep, no thread, no socket.

The invariant: a run in this loop is a function of its seed alone. When everything waits and no
timer is left, the loop raises DeadlockError with the names of the waits instead of hanging.
"""

import asyncio
import contextvars
import gc
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from rollart_flow.control.loop import waits
from rollart_flow.errors import DeadlockError

_MOST_CANCELLED = 100
"""Cancelled timers that may stay, even if fewer others are set."""


class Calendar:
    """The timers that have not fired, in the order of their time and then of their setting."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        """(time, order of setting, timer): tuples are compared without a Python call."""
        self._order = count()
        self._cancelled = 0
        """Upper bound of the cancelled timers among them."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._heap, (when, next(self._order), timer))

    def next(self) -> float | None:
        """Time at which the next timer fires; None if no timer is set."""
        while self._heap and self._heap[0][2].cancelled():
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[asyncio.TimerHandle]:
        """Remove and return the timers that fire by `now`, which is not after `next()`."""
        taken: list[asyncio.TimerHandle] = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heapq.heappop(self._heap)[2])
        return taken

    def cancelled(self) -> None:
        """Count a cancelled timer; drop all cancelled ones when they outnumber the others."""
        self._cancelled += 1
        if self._cancelled > _MOST_CANCELLED and self._cancelled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._cancelled = 0


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """asyncio's own loop with a clock in place of a selector.

    `shuffle` permutes callbacks that are ready at the same moment, so that seeds explore schedules;
    None keeps asyncio's order.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, shuffle: random.Random | None = None) -> None:
        super().__init__()
        self._now = 0.0
        self._shuffle = shuffle
        self._calendar = Calendar()
        self._context = contextvars.copy_context()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    @property
    def timers(self) -> int:
        """Number of timers that are set, cancelled ones included."""
        return len(self._calendar)

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Append a callback; asyncio's own method takes a quarter of the time of a simulation."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer; timers of the same moment fire in the order in which they were set.

        Without a context the timer runs in the loop's own: timers only wake tasks, and each task
        has a context.
        """
        timer = asyncio.TimerHandle(when, callback, args, self, context or self._context)
        self._calendar.add(when, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle.when() > self._now:
            self._calendar.cancelled()

    def _run_once(self) -> None:
        """Jump to the next timer unless a callback is ready; DeadlockError if no timer is set."""
        if not self._ready and not self._stopping:
            if (when := self._calendar.next()) is None:
                raise DeadlockError(
                    f"everything waits and nothing can wake it: {self._who_waits()}"
                )
            self._now = max(self._now, when)
        self._ready.extend(self._calendar.take(self._now))
        if self._shuffle is not None and len(self._ready) > 1:
            handles = list(self._ready)
            self._shuffle.shuffle(handles)
            self._ready = deque(handles)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _who_waits(self) -> str:
        tasks = (task.get_name() for task in asyncio.all_tasks(self))
        return waits.describe(self) or ", ".join(sorted(tasks))

    def _write_to_self(self) -> None:
        """Do nothing: this loop never sleeps, so that it need not be woken."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Raise an error: a thread would not know the virtual clock."""
        raise RuntimeError("no threads under virtual time")


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, shuffle: bool = False) -> T:
    """Run a coroutine to its end under virtual time, like `asyncio.run`.

    The seed is that of Python's `random`, which is restored afterwards, and of `shuffle`, which
    permutes callbacks that are ready together. Raises DeadlockError if nothing can wake what waits.
    """
    before = random.getstate()
    collecting = gc.isenabled()
    random.seed(seed)
    gc.disable()  # walking a large simulation costs more than its few cycles
    chance = random.Random(seed) if shuffle else None
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(chance)) as runner:
            return runner.run(main)
    finally:
        random.setstate(before)
        if collecting:
            gc.enable()
