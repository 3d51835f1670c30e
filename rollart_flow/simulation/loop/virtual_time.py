"""An event loop whose clock jumps to the next timer: no real sleep, no thread, no socket.

The invariant: a run in this loop is a function of its seed alone. When everything waits and no
timer is left, the loop raises DeadlockError with the names of the waits instead of hanging.
"""

import asyncio
import contextvars
import gc
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from rollart_flow.control.loop import waits
from rollart_flow.errors import DeadlockError
from rollart_flow.simulation.loop.calendar import Calendar

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """asyncio's own loop with a clock in place of a selector.

    Args:
        shuffle: a source of randomness that permutes callbacks that are ready at the same moment,
            so that seeds explore schedules; None keeps asyncio's order.
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
        """Number of timers in the calendar, cancelled ones included."""
        return len(self._calendar)

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
        """Run one iteration for asyncio: jump to the next timer unless a callback is ready.

        Raises:
            DeadlockError: no callback is ready and no timer is set.
        """
        if not self._ready and not self._stopping:
            self._jump()
        self._ready.extend(self._calendar.take(self._now))
        if self._shuffle is not None and len(self._ready) > 1:
            handles = list(self._ready)
            self._shuffle.shuffle(handles)
            self._ready = deque(handles)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _jump(self) -> None:
        if (when := self._calendar.next()) is not None:
            self._now = max(self._now, when)
            return
        raise DeadlockError(f"everything waits and nothing can wake it: {self._who_waits()}")

    def _who_waits(self) -> str:
        named = waits.describe(self)
        if named:
            return named
        return ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))

    def _write_to_self(self) -> None:
        """Do nothing: this loop never sleeps, so that it need not be woken."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Raise an error: a thread would not know the virtual clock."""
        raise RuntimeError("no threads under virtual time")


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, shuffle: bool = False) -> T:
    """Run a coroutine to its end under virtual time, like `asyncio.run`.

    Args:
        main: the coroutine.
        seed: seed of Python's `random`, which is restored afterwards, and of `shuffle`.
        shuffle: whether the order of callbacks that are ready together is permuted.

    Raises:
        DeadlockError: everything waits and nothing can wake it.
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
