"""Named waits, so that no hang goes unnoticed, and bounded ones.

`waiting` registers a wait with the running loop while the wait lasts; `listing` returns the open
waits; a `Watchdog` emits one STALL event when no wait of the loop has ended for too long. The
invariant: every potentially unlimited wait of the control plane is inside `waiting`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from weakref import WeakKeyDictionary, ref

from rollart_flow.control.protocols import Emit
from rollart_flow.errors import SettingsError
from rollart_flow.timeouts import timeout
from rollart_flow.types import Event, EventKind

_SHOWN_WAITS = 20


@dataclass(frozen=True, slots=True)
class Wait:
    """An open wait: its name, and its start in seconds of the loop's clock."""

    name: str
    since_s: float


class _Waits:
    """Open waits of one loop.

    The registry holds it strongly, so that a loop that it referred to would never be freed.
    """

    __slots__ = ("on_progress", "open")

    def __init__(self) -> None:
        self.open: dict[_Waiting, float] = {}
        self.on_progress: Callable[[], None] | None = None
        """Called when a wait ends; a watchdog's, until it is closed."""


_REGISTRY: WeakKeyDictionary[asyncio.AbstractEventLoop, _Waits] = WeakKeyDictionary()
_last: tuple[Callable[[], asyncio.AbstractEventLoop | None], _Waits] | None = None
"""The loop that was last asked for, by a weak reference, with its waits: most processes have one
loop, and a look into the registry takes as long as all else of a wait."""


def _waits(loop: asyncio.AbstractEventLoop) -> _Waits:
    global _last
    if (last := _last) is not None and last[0]() is loop:
        return last[1]
    waits = _REGISTRY.get(loop)
    if waits is None:
        waits = _REGISTRY[loop] = _Waits()
    _last = ref(loop), waits
    return waits


class _Waiting:
    """Context manager of one wait, which begins where it is made."""

    __slots__ = ("_since_s", "_waits", "name")

    def __init__(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self._waits = _waits(loop)
        self._since_s = loop.time()

    def __enter__(self) -> None:
        self._waits.open[self] = self._since_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        waits = self._waits
        waits.open.pop(self, None)
        if waits.on_progress is not None:
            waits.on_progress()


def waiting(name: str) -> _Waiting:
    """Return a context manager that names the wait of its body, such as `get_batch(step=3)`."""
    return _Waiting(name)


def listing(loop: asyncio.AbstractEventLoop | None = None) -> tuple[Wait, ...]:
    """Return the open waits of a loop (default: the running loop), the longest first."""
    waits = _waits(loop or asyncio.get_running_loop())
    return tuple(Wait(w.name, since) for w, since in waits.open.items())


def every_loop() -> list[tuple[asyncio.AbstractEventLoop, tuple[Wait, ...]]]:
    """Return the loops of this process with their open waits; may be called from any thread.

    Raises:
        RuntimeError: a loop was added meanwhile; call again.
    """
    return [
        (loop, tuple(Wait(w.name, since) for w, since in list(waits.open.items())))
        for loop, waits in list(_REGISTRY.items())
        if not loop.is_closed()
    ]


def describe(loop: asyncio.AbstractEventLoop) -> str:
    """Describe the open waits in one line, the longest first."""
    waits = listing(loop)
    now = loop.time()
    shown = [f"{w.name} for {now - w.since_s:.1f} s" for w in waits[:_SHOWN_WAITS]]
    more = len(waits) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


class Signal:
    """Wakes all current waiters when notified; later waiters wait for the next notification.

    Use: `while not condition: await signal.wait()`. No other code runs between the check and the
    wait, so that no notification is missed.
    """

    def __init__(self) -> None:
        # A dict keeps the order of arrival; the order of a set would not be reproducible.
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        """Return at the next `notify`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[future] = None
        try:
            await future
        finally:
            del self._waiters[future]

    def notify(self) -> None:
        """Wake all current waiters."""
        for future in self._waiters:
            if not future.done():
                future.set_result(None)


class Watchdog:
    """Emits one STALL event whenever no wait of the running loop has ended for `stall_s`.

    Progress arms the watchdog, and its event disarms it, so that it keeps no idle loop busy.

    Args:
        emit: receives the event, whose detail lists the waits, the longest first.
        stall_s: seconds without progress.
    """

    def __init__(self, emit: Emit, stall_s: float) -> None:
        if stall_s <= 0:
            raise SettingsError(f"stall_s is {stall_s}, but must be above 0 seconds")
        self._emit = emit
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._waits = _waits(self._loop)
        self._timer: asyncio.TimerHandle | None = None
        self._progressed_at = 0.0
        self._waits.on_progress = self._arm
        self._arm()

    def _arm(self) -> None:
        self._progressed_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._stall_s, self._look)

    def _look(self) -> None:
        self._timer = None
        idle_s = self._loop.time() - self._progressed_at
        if idle_s < self._stall_s:
            self._timer = self._loop.call_later(self._stall_s - idle_s, self._look)
        elif self._waits.open:
            self._bark(idle_s)

    def _bark(self, idle_s: float) -> None:
        waits = listing(self._loop)
        now = self._loop.time()
        detail = {
            "idle_s": round(idle_s, 3),
            "waits": len(waits),
            "longest": [
                {"name": w.name, "waited_s": round(now - w.since_s, 3)}
                for w in waits[:_SHOWN_WAITS]
            ],
        }
        self._emit(Event(EventKind.STALL, subject=waits[0].name, detail=detail))

    def close(self) -> None:
        """Stop watching."""
        self._waits.on_progress = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def within(seconds: float, event: asyncio.Event) -> None:
    """Wait for an event, but no longer than a number of seconds, if any."""
    if seconds <= 0:
        return
    try:
        async with timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
