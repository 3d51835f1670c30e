"""The processes that plain reward functions run in: kept, and a few started at a time.

Starting one costs what the function's module imports, tens of milliseconds to many seconds, and
more where many start at once. So no more start at a time than there are cores, a call takes
whichever process is free first, and its time limit stands still meanwhile: what is killed at its
limit would only have to be started again. The invariant: a process that is handed out lives, has
loaded the function, and is nobody else's.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollart_flow.control.loop.waits import Signal
from rollart_flow.errors import RewardTimeoutError
from rollart_flow.isolation.process import Isolated

_HANDLER = "rollart_flow.rewards.child_handler:RewardHandler"
START_S = 300.0
"""Longest start of a process, with all that its function imports."""


class Deadline:
    """A time limit that can stand still.

    Args:
        limit: entered already.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._holders = 0
        self._left_s = 0.0
        self._over = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """For `with`: time does not count, whoever else holds it too."""
        loop = asyncio.get_running_loop()
        when = self._limit.when()
        if not self._holders and when is not None and not self._over:
            self._left_s = when - loop.time()
            self._limit.reschedule(None)
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders and not self._over:
                self._limit.reschedule(loop.time() + self._left_s)

    def end(self) -> None:
        """The limit was left; who still holds it moves it no more."""
        self._over = True


@dataclass(slots=True)
class Loaded:
    """A process, and the functions that it has loaded."""

    isolated: Isolated
    functions: set[str] = field(default_factory=set)


class Processes:
    """Processes of one event loop."""

    def __init__(self) -> None:
        self._idle: list[Loaded] = []
        self._starting = 0
        self._at_once = os.cpu_count() or 1
        self._freed = Signal()

    async def take(self, where: Mapping[str, str], deadline: Deadline) -> Loaded:
        """An idle process that has loaded a function; `give` it back.

        Raises:
            IsolatedError: no process can be started, or the function not loaded.
            RewardTimeoutError: not within `START_S`.
        """
        if (ready := self._ready(where)) is not None:
            return ready
        with deadline.held():
            while self._starting >= self._at_once:
                await self._freed.wait()
                if (ready := self._ready(where)) is not None:
                    return ready
            return await self._start(where)

    def give(self, process: Loaded) -> None:
        """Take a process back, unless it has ended."""
        if process.isolated.alive:
            self._idle.append(process)
        self._freed.notify()

    async def warm(self, where: Mapping[str, str], count: int) -> None:
        """Have so many idle processes that have loaded a function, if it can be loaded."""
        ready = sum(_key(where) in process.functions for process in self._idle)
        found = await asyncio.gather(
            *(self._another(where) for _ in range(count - ready)), return_exceptions=True
        )
        for process in found:
            if isinstance(process, Loaded):
                self.give(process)

    async def close(self) -> None:
        """End those that are idle. May be called twice."""
        while self._idle:
            await self._idle.pop().isolated.kill()

    def _ready(self, where: Mapping[str, str]) -> Loaded | None:
        """The one used last of those that have loaded a function."""
        key = _key(where)
        return self._pick(lambda process: key in process.functions)

    def _pick(self, wanted: Callable[[Loaded], bool]) -> Loaded | None:
        """The idle one used last of those wanted; one that has ended lies there until `close`."""
        for index in reversed(range(len(self._idle))):
            if self._idle[index].isolated.alive and wanted(self._idle[index]):
                return self._idle.pop(index)
        return None

    async def _another(self, where: Mapping[str, str]) -> Loaded:
        """One more, whichever come free meanwhile."""
        while self._starting >= self._at_once:
            await self._freed.wait()
        return await self._start(where)

    async def _start(self, where: Mapping[str, str]) -> Loaded:
        self._starting += 1
        try:
            return await self._loaded(where)
        finally:
            self._starting -= 1
            self._freed.notify()

    async def _loaded(self, where: Mapping[str, str]) -> Loaded:
        """An idle process, or a new one, with the function loaded now."""
        key = _key(where)
        process = self._pick(lambda process: key not in process.functions)
        if process is None:
            process = Loaded(await Isolated.start(_HANDLER))
        try:
            async with asyncio.timeout(START_S):
                await process.isolated.call({"function": where})
        except TimeoutError as error:
            raise RewardTimeoutError(f"not loaded within {START_S:g} s") from error
        except BaseException:
            self.give(process)
            raise
        process.functions.add(key)
        return process


def _key(where: Mapping[str, str]) -> str:
    return repr(where)
