"""A small cluster under virtual time: fake engines, environments, network and rollout pipeline.

The real ones need processes and weights; what is tested with these are the control-plane classes,
which are the real ones. Every fault is drawn from one seeded source.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Generic, TypeVar

from rollart_flow.control.buffer import SampleBuffer
from rollart_flow.control.ports import Cancellation, Change
from rollart_flow.control.scheduler import RolloutScheduler
from rollart_flow.errors import EngineError, RunFailedError
from rollart_flow.types import (
    Assignment,
    Batch,
    Chunk,
    Event,
    FinishReason,
    GenerationRequest,
    Sample,
    Task,
    Trajectory,
)

T = TypeVar("T")
A = TypeVar("A")

STOP = 0
DAWN = datetime(2026, 1, 1, tzinfo=UTC)


def wall(seconds: float) -> datetime:
    """Loop time to UTC."""
    return DAWN + timedelta(seconds=seconds)


def endless_tasks(cursor: int = 0) -> Iterator[tuple[Task, int]]:
    """Tasks of two domains in turn, from a cursor on, with their cursors."""
    while True:
        yield Task(f"task-{cursor}", "ab"[cursor % 2]), cursor
        cursor += 1


def sample_of(trajectory: Trajectory) -> Sample:
    """What the buffer is told of a scored trajectory."""
    return Sample(
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        domain=trajectory.domain,
        attempt=trajectory.attempt,
        outcome=trajectory.outcome,
        policy_version_start=trajectory.policy_version_start,
        policy_version_end=trajectory.policy_version_end,
        scored=True,
        tokens=len(trajectory.token_ids),
        error=trajectory.error,
    )


class FakeCodec:
    """One token per character."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        return tuple(ord(c) for c in text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(t) for t in token_ids if t != STOP)


class FakeEngine:
    """One inference worker: draws letters at random times, obeys suspend, update and resume."""

    def __init__(self, worker: str, hardware: str, chance: Random, token_s: float = 0.05) -> None:
        self._worker = worker
        self._hardware = hardware
        self._chance = chance
        self._token_s = token_s
        self.version = 0
        self.dead = False
        self._running = asyncio.Event()
        self._running.set()
        self._aborted: set[str] = set()
        self._seen: set[str] = set()

    @property
    def worker(self) -> str:
        return self._worker

    @property
    def hardware(self) -> str:
        return self._hardware

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        # A worker takes a request id that it knows for a repeated message.
        assert request.request_id not in self._seen
        self._seen.add(request.request_id)
        length = min(request.sampling.max_tokens, self._chance.randint(1, 6))
        for offset in range(length):
            await asyncio.sleep(self._chance.expovariate(1 / self._token_s))
            await self._running.wait()
            if self.dead:
                raise EngineError(f"{self._worker} died")
            if request.request_id in self._aborted:
                yield self._chunk(request, offset, (), FinishReason.ABORT)
                return
            last = offset == length - 1
            token = STOP if last else ord("a") + offset
            yield self._chunk(request, offset, (token,), FinishReason.STOP if last else None)

    def _chunk(
        self,
        request: GenerationRequest,
        offset: int,
        token_ids: tuple[int, ...],
        reason: FinishReason | None,
    ) -> Chunk:
        return Chunk(
            request_id=request.request_id,
            offset=offset,
            token_ids=token_ids,
            logprobs=tuple(-0.5 for _ in token_ids),
            versions=tuple(self.version for _ in token_ids),
            finish_reason=reason,
        )

    async def abort(self, request_id: str) -> None:
        self._aborted.add(request_id)

    def suspend(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    @property
    def suspended(self) -> bool:
        return not self._running.is_set()


class FakeInferenceControl:
    """Suspends, updates and resumes all engines, which takes time."""

    def __init__(self, engines: Sequence[FakeEngine], delay: Callable[[], Awaitable[None]]) -> None:
        self._engines = engines
        self._delay = delay

    async def suspend(self) -> None:
        await self._delay()
        for engine in self._engines:
            engine.suspend()

    async def update(self, version: int) -> None:
        await self._delay()
        for engine in self._engines:
            assert engine.suspended, "weights changed under a running engine"
            engine.version = version

    async def resume(self) -> None:
        await self._delay()
        for engine in self._engines:
            engine.resume()


@dataclass
class EnvironmentFaults:
    """Probabilities per call."""

    raises: float = 0.0
    hangs: float = 0.0
    nonsense: float = 0.0


class FakeEnvironment:
    """Answers after a random time; ends after a few steps."""

    def __init__(self, chance: Random, faults: EnvironmentFaults, step_s: float = 0.2) -> None:
        self._chance = chance
        self._faults = faults
        self._step_s = step_s
        self.closed = 0

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        await self._maybe_fail()
        return "go", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        await self._maybe_fail()
        if self._chance.random() < self._faults.nonsense:
            return 17, "much", None, None, None  # type: ignore[return-value]
        terminated = self._chance.random() < 0.4
        return "next", 1.0, terminated, self._chance.random() < 0.1, {"success": terminated}

    async def close(self) -> None:
        self.closed += 1

    async def _maybe_fail(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / self._step_s))
        draw = self._chance.random()
        if draw < self._faults.raises:
            raise ValueError("the environment broke")
        if draw < self._faults.raises + self._faults.hangs:
            await asyncio.Event().wait()


class GoneError(Exception):
    """Whoever was asked died before it answered."""


class Address(Generic[T]):
    """Where to reach somebody who may die and be replaced."""

    def __init__(self, resident: T) -> None:
        self.resident = resident
        self._asked: dict[asyncio.Task[Any], None] = {}

    async def ask(self, question: Callable[[T], Coroutine[Any, Any, A]]) -> A:
        """The answer of whoever lives here.

        Raises:
            GoneError: the resident died meanwhile.
        """
        task = asyncio.ensure_future(question(self.resident))
        self._asked[task] = None
        try:
            await asyncio.wait((task,))
        finally:
            del self._asked[task]
            task.cancel()
        if task.cancelled():
            raise GoneError
        return task.result()

    def replace(self, resident: T) -> None:
        """The resident dies, and another one moves in."""
        self.resident = resident
        for task in self._asked:
            task.cancel()


@dataclass
class Network:
    """Delays, repeats and loses messages; who calls asks again until an answer comes."""

    chance: Random
    latency_s: float = 0.01
    lost: float = 0.0
    repeated: float = 0.0
    _echoes: dict[asyncio.Task[Any], None] = field(default_factory=dict)

    async def delay(self) -> None:
        """One hop."""
        await asyncio.sleep(self.chance.expovariate(1 / self.latency_s))

    async def call(self, to: Address[T], message: Callable[[T], Coroutine[Any, Any, A]]) -> A:
        """Send a message that has an answer, until one arrives."""
        while True:
            await self.delay()
            if self.chance.random() < self.repeated:
                self._echo(to, message)
            if self.chance.random() < self.lost:
                continue
            try:
                answer = await to.ask(message)
            except GoneError:
                continue
            await self.delay()
            if self.chance.random() >= self.lost:
                return answer

    def _echo(self, to: Address[T], message: Callable[[T], Coroutine[Any, Any, object]]) -> None:
        sent_to = to.resident

        async def later() -> None:
            await asyncio.sleep(self.chance.expovariate(1 / (20 * self.latency_s)))
            if to.resident is not sent_to:
                return  # a message does not outlive the process that it was sent to
            # An echo of a step that is over is refused, which is what it should be.
            with suppress(GoneError, RunFailedError):
                await to.ask(message)

        task = asyncio.ensure_future(later())
        self._echoes[task] = None
        task.add_done_callback(lambda done: self._echoes.pop(done))

    async def close(self) -> None:
        """Drop what is still on its way."""
        echoes = list(self._echoes)
        for echo in echoes:
            echo.cancel()
        await asyncio.gather(*echoes, return_exceptions=True)


class RemoteAdmission:
    """The scheduler over a network."""

    def __init__(self, scheduler: Address[RolloutScheduler], network: Network) -> None:
        self._scheduler = scheduler
        self._network = network

    async def admit(self, source: str, index: int) -> Assignment | None:
        return await self._network.call(self._scheduler, lambda s: s.admit(source, index))

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        return await self._network.call(self._scheduler, lambda s: s.permit(trajectory_id, host))

    async def started(self, trajectory_id: str, version: int) -> None:
        await self._network.call(self._scheduler, lambda s: s.started(trajectory_id, version))

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        return await self._network.call(self._scheduler, lambda s: s.cancellations(host, after))


class RemoteBuffer:
    """The buffer over a network."""

    def __init__(self, buffer: Address[SampleBuffer], network: Network) -> None:
        self._buffer = buffer
        self._network = network

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        return await self._network.call(self._buffer, lambda b: b.get_batch(step, version, size))

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        return await self._network.call(self._buffer, lambda b: b.changes(after))


class EventLog:
    """Collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if event.kind == kind]
