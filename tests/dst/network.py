"""Messages that are lost, delayed, repeated and reordered, to processes that die and come back.

As `control.protocols` requires, a caller repeats its message until an answer comes, and a message
that was sent to a process never reaches its successor, unless its sender still waits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Generic, TypeVar

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.plane import ControlPlane
from rollart_flow.control.protocols import Change, Order, Permission, RunningAttempt
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.errors import RunFailedError, UnknownClientError
from rollart_flow.types import Assignment, Batch
from tests.dst.plans import Faults
from tests.dst.process import BufferProcess

T = TypeVar("T")
A = TypeVar("A")

_LATEST_S = 1.0
_ECHO_S = 0.2


class GoneError(Exception):
    """The receiver of a message died before it answered."""


class Address(Generic[T]):
    """The address of a process that may die and be replaced."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._resident: T | None = None
        self._asked: dict[asyncio.Task[Any], asyncio.Future[None]] = {}
        self._moved_in = Signal()

    @property
    def resident(self) -> T | None:
        """The process at this address; None while there is none."""
        return self._resident

    async def reached(self) -> T:
        """Wait for a process at this address, and return it."""
        while self._resident is None:
            with waiting(f"the {self._name}"):
                await self._moved_in.wait()
        return self._resident

    async def ask(self, question: Callable[[T], Coroutine[Any, Any, A]]) -> A:
        """The answer of the process, which works on it even if the caller is cancelled.

        Raises:
            GoneError: the process died before it answered.
        """
        task = asyncio.ensure_future(question(await self.reached()))
        answered = self._asked[task] = asyncio.get_running_loop().create_future()
        task.add_done_callback(self._answered)
        await answered
        if task.cancelled():
            raise GoneError
        return task.result()

    def _answered(self, task: asyncio.Task[Any]) -> None:
        answered = self._asked.pop(task)
        if not answered.done():
            answered.set_result(None)
        if not task.cancelled():
            task.exception()  # retrieve it: the caller may have been cancelled

    def move_in(self, resident: T) -> None:
        """Put a process at this address."""
        self._resident = resident
        self._moved_in.notify()

    def vacate(self) -> None:
        """Remove the dead process and cancel its messages."""
        self._resident = None
        for task in self._asked:
            task.cancel()


class Network:
    """Carries messages.

    Args:
        chance: source of all randomness.
        faults: probabilities of lost, repeated and late messages.
        latency_s: mean latency of a hop [s].
    """

    def __init__(self, chance: Random, faults: Faults, latency_s: float = 0.01) -> None:
        self._chance = chance
        self._faults = faults
        self._latency_s = latency_s
        self._echoes: dict[asyncio.Task[None], None] = {}
        self._ended = False

    def end(self) -> None:
        """Cancel whatever sends a message from now on, since all processes have died."""
        self._ended = True

    async def delay(self) -> None:
        """Wait for one hop."""
        if self._ended:
            raise asyncio.CancelledError
        chance = self._chance
        seconds = chance.expovariate(1 / self._latency_s)
        if chance.random() < self._faults.message_late:
            seconds += chance.uniform(0.0, _LATEST_S)
        await asyncio.sleep(seconds)

    async def call(self, to: Address[T], message: Callable[[T], Coroutine[Any, Any, A]]) -> A:
        """Send a message until its answer arrives."""
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
            echo.exception()  # retrieve it: the sender of the message gets it too

    async def _later(
        self, to: Address[T], meant: T | None, message: Callable[[T], Coroutine[Any, Any, object]]
    ) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / _ECHO_S))
        if meant is None or to.resident is not meant:
            return  # a message does not outlive the process that it was sent to
        # An echo of a finished step is refused, as it should be.
        with suppress(GoneError, RunFailedError, UnknownClientError):
            await to.ask(message)


class RemoteAdmission:
    """The protocol `Admission` of a scheduler behind a network."""

    def __init__(self, coordinator: Address[ControlPlane], network: Network) -> None:
        self._coordinator = coordinator
        self._network = network

    async def admit(self, source: str, index: int, most: int = 1) -> tuple[Assignment, ...]:
        return await self._ask(lambda scheduler: scheduler.admit(source, index, most))

    async def permit(self, trajectory_id: str, worker: str) -> Permission:
        return await self._ask(lambda scheduler: scheduler.permit(trajectory_id, worker))

    async def started(self, trajectory_id: str, version: int) -> None:
        await self._ask(lambda scheduler: scheduler.started(trajectory_id, version))

    async def orders(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        return await self._network.call(
            self._coordinator, lambda plane: plane.polls.orders(worker, after)
        )

    async def announce(
        self, worker: str, running: Sequence[RunningAttempt]
    ) -> tuple[int, tuple[Order, ...]]:
        return await self._ask(lambda scheduler: scheduler.announce(worker, running))

    async def adopt(self, source: str, blocks: Sequence[Sequence[str]]) -> None:
        await self._ask(lambda scheduler: scheduler.adopt(source, blocks))

    async def _ask(self, message: Callable[[RolloutScheduler], Coroutine[Any, Any, A]]) -> A:
        return await self._network.call(self._coordinator, lambda plane: message(plane.scheduler))


class RemoteBuffer:
    """The protocol `Buffered` of a buffer behind a network."""

    def __init__(self, buffer: Address[BufferProcess], network: Network) -> None:
        self._buffer = buffer
        self._network = network

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        return await self._network.call(self._buffer, lambda b: b.get_batch(step, version, size))

    async def formed(self, step: int) -> Batch | None:
        return await self._network.call(self._buffer, lambda b: b.formed(step))

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        return await self._network.call(self._buffer, lambda b: b.changes(after))
