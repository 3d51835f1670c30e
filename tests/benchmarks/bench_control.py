"""Overhead of the control plane per environment turn, engine and environment doing nothing.

512 environments in one process, on asyncio's own loop and the real clock. Everything that a turn
goes through is real (the planes of `control.plane`, the SampleBuffer), and at each wait for engine
or environment all others run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.plane import (
    ControlPlane,
    EngineWorkers,
    InferenceClients,
    PlaneSettings,
    RolloutPlane,
)
from rollart_flow.control.protocols import PullStats
from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import (
    AttemptLimits,
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

    name = worker = "idle"
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

    async def serve(self, version: int) -> bool:
        """Do nothing: no request is held."""
        return False

    async def release(self) -> int:
        """Do nothing: no memory is held."""
        return 0

    async def leave(self) -> int:
        """Do nothing: no device is shared."""
        return 0

    async def ping(self) -> None:
        """Answer at once."""

    def restart(self) -> None:
        """Do nothing: the engine does not hang."""


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
        engine = IdleEngine()
        self.buffer = SampleBuffer(schedule.bound, 8, self.emit)
        self.plane = ControlPlane(
            PlaneSettings(schedule, settings, STEPS),
            EngineWorkers([engine]),
            _tasks,
            self.buffer,
            self.emit,
        )
        self.host = RolloutPlane(
            "host",
            InferenceClients([engine]),
            IdleCodec(),
            lambda seconds: datetime.fromtimestamp(seconds, UTC),
            self.emit,
            admission=self.plane.scheduler,
            schedule=schedule,
        )

    def emit(self, event: Event) -> None:
        """Count it."""
        self.events += 1

    async def run(self) -> None:
        """Train all steps."""
        feed = asyncio.create_task(self.plane.follow())
        slots = [asyncio.create_task(self._slot(i)) for i in range(ENVIRONMENTS)]
        for step in range(1, STEPS + 1):
            await self.plane.controller.next_batch(step)
            await self.plane.controller.trained(step)
        await asyncio.gather(*slots)
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
        await self.host.close()

    async def _slot(self, number: int) -> None:
        index, admit = 0, self.plane.scheduler.admit
        limits = AttemptLimits(max_turns=TURNS, context_tokens=4096)
        while assignments := await admit(f"slot-{number}", index):
            (assignment,) = assignments
            manager = self.host.manager(assignment, IdleEnvironment, limits)
            (trajectory,) = await self.host.run(manager)
            self.trajectories += 1
            self.turns += len(trajectory.turns)
            tokens = sum(trajectory.token_ids)
            self.buffer.put(Sample.of(trajectory, scored=True, tokens=tokens))
            index += 1


def _tasks(cursor: int) -> Iterator[tuple[Task, int]]:
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
