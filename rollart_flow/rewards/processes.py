"""The pool of processes that plain reward functions run in.

Starting a process costs the import of the function's module, tens of milliseconds to many seconds,
and more if many start at once. Therefore the number of concurrent starts is at most the number of
cores, a call takes the first process that is free, and its time limit is paused meanwhile: a
process killed at its limit would have to be started again. Invariant: a process that `take` returns
is alive, has loaded the function, and is used by one caller only.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollart_flow.control.loop.waits import Signal
from rollart_flow.errors import RewardTimeoutError
from rollart_flow.isolation.process import Isolated
from rollart_flow.timeouts import timeout

_HANDLER = "rollart_flow.rewards.child_handler:RewardHandler"
START_S = 300.0
"""Longest start of a process, including all imports of its function [s]."""


class Deadline:
    """A timeout, entered already, that can be paused."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._holders = 0
        self._left_s = 0.0
        self._over = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return a context manager that pauses the limit; several holders may overlap."""
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
        """Mark the limit as exited; remaining holders no longer reschedule it."""
        self._over = True


@dataclass(slots=True)
class Loaded:
    """A process and the functions that it has loaded."""

    isolated: Isolated
    functions: set[str] = field(default_factory=set)


class Processes:
    """The processes of one event loop."""

    def __init__(self, environ: Collection[str] = ()) -> None:
        """Start nothing; `environ` names further variables that the processes get."""
        self._environ = environ
        self._idle: list[Loaded] = []
        self._starting = 0
        self._at_once = os.cpu_count() or 1
        self._freed = Signal()

    async def take(self, where: Mapping[str, str], deadline: Deadline) -> Loaded:
        """Take an idle process that has loaded a function; return it with `give`.

        Raises:
            IsolatedError: no process can be started, or the function cannot be loaded.
            RewardTimeoutError: loading took longer than `START_S`.
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
        if process.isolated.alive:
            self._idle.append(process)
        self._freed.notify()

    async def warm(self, where: Mapping[str, str], count: int) -> None:
        """Start processes until `count` idle ones have loaded a function, if it can be loaded."""
        ready = sum(_key(where) in process.functions for process in self._idle)
        more = (self._another(where) for _ in range(count - ready))
        found = await asyncio.gather(*more, return_exceptions=True)
        for process in found:
            if isinstance(process, Loaded):
                self.give(process)

    async def close(self) -> None:
        """End the idle processes. May be called twice."""
        while self._idle:
            await self._idle.pop().isolated.kill()

    def _ready(self, where: Mapping[str, str]) -> Loaded | None:
        """Take the most recently used idle process that has loaded a function."""
        key = _key(where)
        return self._pick(lambda process: key in process.functions)

    def _pick(self, wanted: Callable[[Loaded], bool]) -> Loaded | None:
        """Take the most recently used idle process that lives and that `wanted` accepts."""
        for index in reversed(range(len(self._idle))):
            if self._idle[index].isolated.alive and wanted(self._idle[index]):
                return self._idle.pop(index)
        return None

    async def _another(self, where: Mapping[str, str]) -> Loaded:
        """Load the function in one more process, even if others become free meanwhile."""
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
        key = _key(where)
        process = self._pick(lambda process: key not in process.functions)
        if process is None:
            process = Loaded(await Isolated.start(_HANDLER, self._environ))
        try:
            async with timeout(START_S):
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
