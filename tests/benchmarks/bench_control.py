"""Overhead of the control plane per environment turn, engine and environment doing nothing.

512 environments in one process, on asyncio's own loop and the real clock. Everything that a turn
goes through is real (scheduler, EnvManager, LLMProxy, RolloutWorker, SampleBuffer,
AsyncController), and at each wait for engine or environment all others run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import PullStats
from rollart_flow.control.rollout.env_manager import AttemptLimits, EnvManager
from rollart_flow.control.rollout.rollout_worker import RolloutWorker
from rollart_flow.control.schedule.controller import AsyncController
from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import (
    Assignment,
    Chunk,
    Event,
    FinishReason,
    GenerationRequest,
    Sample,
    Sampling,
    Task,
)
from tests.benchmarks.records import Record, record

ENVIRONMENTS = 512
TURNS = 16
STEPS = 4
ACTION_TOKENS = 8
GOAL_MS = 1.0


class IdleEngine:
    """An engine that answers at once with a fixed action."""

    worker = "idle"
    hardware = "CPU"
    stands_for = frozenset(("CPU",))
    version = 0

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """One chunk, which is the last, after all others had their turn in the loop."""
        await asyncio.sleep(0)
        yield Chunk(
            request.request_id,
            0,
            (1,) * ACTION_TOKENS,
            (-0.5,) * ACTION_TOKENS,
            (self.version,) * ACTION_TOKENS,
            FinishReason.STOP,
        )

    async def abort(self, request_id: str) -> None:
        """Do nothing: there is nothing to stop."""

    async def suspend(self) -> None:
        """Do nothing: there is nothing to stop."""

    def prefetch(self, version: int) -> None:
        """Do nothing: there are no weights to read."""

    async def update(self, version: int) -> PullStats:
        """Give the next tokens this version."""
        self.version = version
        return PullStats()

    async def resume(self) -> None:
        """Do nothing: no request is held."""

    async def to_training(self) -> None:
        """Do nothing: no device is shared."""

    async def to_rollout(self) -> None:
        """Do nothing: no device is shared."""


class IdleEnvironment:
    """An environment that ends after a fixed number of turns."""

    def __init__(self) -> None:
        self._left = TURNS

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        """The first observation."""
        return "observation", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        """Terminated after the last turn; all others have their turn in the loop before."""
        await asyncio.sleep(0)
        self._left -= 1
        return "observation", 0.0, self._left == 0, False, {}

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


class IdleCodec:
    """A codec with eight tokens for every text."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        """The same tokens for every text."""
        return (2,) * ACTION_TOKENS

    def decode(self, token_ids: Sequence[int]) -> str:
        """The same text for all tokens."""
        return "action"


class _Turns:
    """A run of a few steps with `ENVIRONMENTS` attempts at a time."""

    def __init__(self) -> None:
        self.events = 0
        self.trajectories = 0
        self.turns = 0
        schedule = rollart(1)
        settings = RolloutSettings(ENVIRONMENTS // 2, 8, sampling=Sampling(max_tokens=8))
        self.engine = IdleEngine()
        self.buffer = SampleBuffer(schedule.bound, 8, self.emit)
        self.scheduler = RolloutScheduler(_tasks(), settings, schedule.bound, self.emit)
        self.controller = AsyncController(
            self.buffer,
            self.engine,
            self.scheduler,
            schedule,
            self.emit,
            batch_size=settings.batch_size,
            steps=STEPS,
        )
        self.host = RolloutWorker("host", self.scheduler)
        self.proxy = LLMProxy([self.engine], self.emit)

    def emit(self, event: Event) -> None:
        """Count it."""
        self.events += 1

    async def run(self) -> None:
        """Train all steps."""
        feed = asyncio.create_task(self._feed())
        slots = [asyncio.create_task(self._slot(i)) for i in range(ENVIRONMENTS)]
        for step in range(1, STEPS + 1):
            await self.controller.next_batch(step)
            await self.controller.trained(step)
        await asyncio.gather(*slots)
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
        await self.host.close()
        await self.proxy.close()

    async def _feed(self) -> None:
        cursor = 0
        while True:
            cursor, changes = await self.buffer.changes(cursor)
            for change in changes:
                self.scheduler.apply(change)

    async def _slot(self, number: int) -> None:
        index = 0
        while (assignment := await self.scheduler.admit(f"slot-{number}", index)) is not None:
            trajectory = await self.host.run(self._manager(assignment))
            self.trajectories += 1
            self.turns += len(trajectory.turns)
            tokens = sum(trajectory.token_ids)
            self.buffer.put(Sample.of(trajectory, scored=True, tokens=tokens))
            index += 1

    def _manager(self, assignment: Assignment) -> EnvManager:
        return EnvManager(
            assignment,
            IdleEnvironment,
            IdleCodec(),
            self.proxy,
            AttemptLimits(max_turns=TURNS, context_tokens=4096),
            lambda seconds: datetime.fromtimestamp(seconds, UTC),
            admission=self.scheduler,
            host="host",
        )


def _tasks() -> Iterator[tuple[Task, int]]:
    cursor = 0
    while True:
        yield Task(f"task-{cursor}", "idle"), cursor
        cursor += 1


def run() -> list[Record]:
    """Milliseconds of this process per turn, the best of three runs."""
    per_turn_ms, per_s = float("inf"), 0.0
    for _ in range(3):
        turns, trajectories, seconds = asyncio.run(_measure())
        per_turn_ms = min(per_turn_ms, 1000 * seconds / turns)
        per_s = max(per_s, trajectories / seconds)
    return [
        record(
            f"control plane: overhead of a turn, {ENVIRONMENTS} environments",
            per_turn_ms,
            "ms",
            at_most=GOAL_MS,
        ),
        record(f"control plane: trajectories of {TURNS} turns", per_s, "trajectories/s"),
    ]


async def _measure() -> tuple[int, int, float]:
    turns = _Turns()
    started = time.perf_counter()
    await turns.run()
    return turns.turns, turns.trajectories, time.perf_counter() - started
