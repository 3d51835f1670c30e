"""Messages that are lost, delayed, repeated and reordered, to processes that die and come back.

As `control.protocols` says: whoever calls asks again until an answer comes, and no message that was
sent to a process reaches the one that takes its place, unless its sender still waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Generic, TypeVar

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Cancellation, Change
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.errors import RunFailedError
from rollart_flow.types import Assignment, Batch
from tests.dst.plans import Faults
from tests.dst.process import BufferProcess

T = TypeVar("T")
A = TypeVar("A")

_LATEST_S = 1.0
_ECHO_S = 0.2


class GoneError(Exception):
    """Whoever was asked died before it answered."""


class Address(Generic[T]):
    """Where to reach somebody who may die and be replaced."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._resident: T | None = None
        self._asked: dict[asyncio.Task[Any], None] = {}
        self._moved_in = Signal()

    @property
    def resident(self) -> T | None:
        """Who lives here; None while nobody does."""
        return self._resident

    async def reached(self) -> T:
        """Who lives here; waits until somebody does."""
        while self._resident is None:
            with waiting(f"the {self._name}"):
                await self._moved_in.wait()
        return self._resident

    async def ask(self, question: Callable[[T], Coroutine[Any, Any, A]]) -> A:
        """The answer of whoever lives here, who works on it also where nobody waits any more.

        Raises:
            GoneError: the resident died meanwhile.
        """
        task = asyncio.ensure_future(question(await self.reached()))
        self._asked[task] = None
        task.add_done_callback(self._answered)
        await asyncio.wait((task,))
        if task.cancelled():
            raise GoneError
        return task.result()

    def _answered(self, task: asyncio.Task[Any]) -> None:
        del self._asked[task]
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more

    def move_in(self, resident: T) -> None:
        """Somebody lives here from now on."""
        self._resident = resident
        self._moved_in.notify()

    def vacate(self) -> None:
        """The resident dies with all that it was asked."""
        self._resident = None
        for task in self._asked:
            task.cancel()


class Network:
    """Carries messages.

    Args:
        chance: of every fault.
        faults: how often messages are lost, repeated and late.
        latency_s: mean of a hop.
    """

    def __init__(self, chance: Random, faults: Faults, latency_s: float = 0.01) -> None:
        self._chance = chance
        self._faults = faults
        self._latency_s = latency_s
        self._echoes: dict[asyncio.Task[None], None] = {}

    async def delay(self) -> None:
        """One hop."""
        chance = self._chance
        seconds = chance.expovariate(1 / self._latency_s)
        if chance.random() < self._faults.message_late:
            seconds += chance.uniform(0.0, _LATEST_S)
        await asyncio.sleep(seconds)

    async def call(self, to: Address[T], message: Callable[[T], Coroutine[Any, Any, A]]) -> A:
        """Send a message that has an answer, until one arrives."""
        chance, faults = self._chance, self._faults
        while True:
            await self.delay()
            if chance.random() < faults.message_repeated:
                self._echo(to, message)
            if chance.random() < faults.message_lost:
                continue
            try:
                answer = await to.ask(message)
            except GoneError:
                continue
            await self.delay()
            if chance.random() >= faults.message_lost:
                return answer

    def _echo(self, to: Address[T], message: Callable[[T], Coroutine[Any, Any, object]]) -> None:
        echo = asyncio.ensure_future(self._later(to, to.resident, message))
        self._echoes[echo] = None
        echo.add_done_callback(self._forget)

    def _forget(self, echo: asyncio.Task[None]) -> None:
        del self._echoes[echo]
        if not echo.cancelled():
            echo.exception()  # whoever sent the message hears of it

    async def _later(
        self, to: Address[T], meant: T | None, message: Callable[[T], Coroutine[Any, Any, object]]
    ) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / _ECHO_S))
        if meant is None or to.resident is not meant:
            return  # a message does not outlive the process that it was sent to
        # An echo of a step that is over is refused, which is what it should be.
        with suppress(GoneError, RunFailedError):
            await to.ask(message)


class RemoteAdmission:
    """The scheduler over a network; implements `control.protocols.Admission`."""

    def __init__(self, scheduler: Address[RolloutScheduler], network: Network) -> None:
        self._scheduler = scheduler
        self._network = network

    async def admit(self, source: str, index: int) -> Assignment | None:
        """See `control.protocols.Admission`."""
        return await self._network.call(self._scheduler, lambda s: s.admit(source, index))

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        """See `control.protocols.Admission`."""
        return await self._network.call(self._scheduler, lambda s: s.permit(trajectory_id, host))

    async def started(self, trajectory_id: str, version: int) -> None:
        """See `control.protocols.Admission`."""
        await self._network.call(self._scheduler, lambda s: s.started(trajectory_id, version))

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """See `control.protocols.Admission`."""
        return await self._network.call(self._scheduler, lambda s: s.cancellations(host, after))


class RemoteBuffer:
    """The buffer over a network; implements `control.protocols.Buffered`."""

    def __init__(self, buffer: Address[BufferProcess], network: Network) -> None:
        self._buffer = buffer
        self._network = network

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """See `control.protocols.Buffered`."""
        return await self._network.call(self._buffer, lambda b: b.get_batch(step, version, size))

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """See `control.protocols.Buffered`."""
        return await self._network.call(self._buffer, lambda b: b.changes(after))
