"""Stages: bounded, first come first served, and nothing is kept by those who are interrupted."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from random import Random

import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.loop.waits import listing
from rollart_flow.control.protocols import Cancellation
from rollart_flow.control.rollout.dispatch import Dispatch, FifoSemaphore, Stages, StageSlot
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.control.rollout.rollout_worker import RolloutWorker
from rollart_flow.control.schedule.declarations import StageSizes
from rollart_flow.control.schedule.schedules import rollart, staged
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import (
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Outcome,
    Reason,
    Sampling,
    Trajectory,
)
from tests.dst.environments import LetterCodec, endless_tasks, wall
from tests.dst.log import EventLog
from tests.dst.plans import STOP

STEPS = 3


async def hold(
    places: FifoSemaphore, name: str, seconds: float, log: list[tuple[float, str]]
) -> None:
    """Have a place for a while."""
    await places.take(name)
    log.append((asyncio.get_running_loop().time(), name))
    await asyncio.sleep(seconds)
    places.give_back()


async def test_places_are_given_in_the_order_of_arrival() -> None:
    places = FifoSemaphore("place", 2)
    log: list[tuple[float, str]] = []
    await asyncio.gather(*(hold(places, name, 10, log) for name in "abcde"))
    assert log == [(0.0, "a"), (0.0, "b"), (10.0, "c"), (10.0, "d"), (20.0, "e")]
    assert places.free == 2


@pytest.mark.parametrize("moment", [5.0, 10.0])
async def test_who_is_interrupted_in_line_leaves_nothing_occupied(moment: float) -> None:
    """Also at the very moment at which the place becomes free."""
    places = FifoSemaphore("place", 1)
    log: list[tuple[float, str]] = []
    first = asyncio.create_task(hold(places, "first", 10, log))
    await asyncio.sleep(0)
    second = asyncio.create_task(hold(places, "second", 10, log))
    third = asyncio.create_task(hold(places, "third", 10, log))
    await asyncio.sleep(moment)
    second.cancel()
    await asyncio.gather(first, third)
    assert second.cancelled()
    assert log == [(0.0, "first"), (10.0, "third")]
    assert places.free == 1


async def test_a_place_that_is_given_to_one_who_is_interrupted_goes_to_the_next() -> None:
    places = FifoSemaphore("place", 1)
    log: list[tuple[float, str]] = []
    await places.take("first")
    second = asyncio.create_task(hold(places, "second", 10, log))
    third = asyncio.create_task(hold(places, "third", 10, log))
    await asyncio.sleep(0)
    places.give_back()
    second.cancel()
    await asyncio.gather(second, third, return_exceptions=True)
    assert log == [(0.0, "third")]
    assert places.free == 1


async def test_an_attempt_keeps_its_place_only_while_the_next_queue_is_full() -> None:
    stages = Stages(StageSizes(init=1, run=1, reward=1))
    moved: list[tuple[float, str]] = []

    async def attempt(name: str) -> None:
        loop, passage = asyncio.get_running_loop(), StageSlot(stages, name)
        await passage.begin()
        moved.append((loop.time(), f"{name} resets"))
        await asyncio.sleep(1)
        await passage.proceed()
        moved.append((loop.time(), f"{name} runs"))
        await asyncio.sleep(10)
        passage.leave()
        passage.leave()

    tasks = [asyncio.create_task(attempt(name)) for name in "abcd"]
    await asyncio.sleep(5)
    # a runs, b is in the queue, c keeps the only place to reset in, d waits for it.
    assert [wait.name for wait in listing()] == ["init place(d)", "run place(b)", "run queue(c)"]
    await asyncio.gather(*tasks)
    assert moved == [
        (0, "a resets"), (1, "a runs"), (1, "b resets"), (2, "c resets"), (11, "b runs"),
        (11, "d resets"), (21, "c runs"), (31, "d runs"),
    ]  # fmt: skip
    assert (stages.init.free, stages.queue.free, stages.run.free) == (1, 1, 1)


class PlainEngine:
    """One word of one token, after a random time."""

    hardware = "H20"
    stands_for = frozenset(("H20",))

    def __init__(self, worker: str, chance: Random) -> None:
        self.worker = worker
        self._chance = chance

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        await asyncio.sleep(self._chance.expovariate(10.0))
        yield Chunk(request.request_id, 0, (STOP,), (-0.5,), (0,), FinishReason.STOP)

    async def abort(self, request_id: str) -> None:
        """Nothing goes on."""


class Crowd:
    """How many environments are reset, and how many attempts run, at once."""

    def __init__(self) -> None:
        self.resetting = self.running = self.most_resetting = self.most_running = 0


class CrowdedEnvironment:
    """Takes time, and counts itself: it runs from the end of its first step to its last one."""

    def __init__(self, crowd: Crowd, chance: Random) -> None:
        self._crowd = crowd
        self._chance = chance
        self._left = STEPS
        self._runs = False

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        self._crowd.resetting += 1
        self._crowd.most_resetting = max(self._crowd.most_resetting, self._crowd.resetting)
        try:
            await asyncio.sleep(self._chance.expovariate(1.0))
        finally:
            self._crowd.resetting -= 1
        return "go", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        if not self._runs:
            self._runs = True
            self._crowd.running += 1
            self._crowd.most_running = max(self._crowd.most_running, self._crowd.running)
        await asyncio.sleep(self._chance.expovariate(1.0))
        self._left -= 1
        if not self._left:
            self._stop()
        return "next", 1.0, self._left == 0, False, {}

    async def close(self) -> None:
        self._stop()

    def _stop(self) -> None:
        self._crowd.running -= self._runs
        self._runs = False


class World:
    """One host with a scheduler and a fast engine."""

    def __init__(self, dispatch: Dispatch, *, timeout_s: float = 1e6) -> None:
        self.crowd = Crowd()
        self.dispatch = dispatch
        self._chance = Random(0)
        settings = RolloutSettings(16, 4, sampling=Sampling(max_tokens=4, stop_token_ids=(STOP,)))
        self.scheduler = RolloutScheduler(endless_tasks(), settings, StalenessPolicy(1), EventLog())
        self.host = RolloutWorker("host", self.scheduler, dispatch=dispatch)
        engines = [PlainEngine(f"engine-{i}", self._chance) for i in range(2)]
        self._proxy = LLMProxy(engines, EventLog())
        self._limits = AttemptLimits(
            max_turns=9, context_tokens=1000, step_timeout_s=1e6, trajectory_timeout_s=timeout_s
        )

    async def start(self, count: int) -> list[asyncio.Task[Trajectory]]:
        managers = [await self.manager(index) for index in range(count)]
        return [asyncio.create_task(self.run(manager)) for manager in managers]

    async def run(self, manager: EnvManager) -> Trajectory:
        (trajectory,) = await self.host.run(manager)
        return trajectory

    async def manager(self, index: int) -> EnvManager:
        (assignment,) = await self.scheduler.admit("source", index)
        return EnvManager(
            assignment,
            lambda: CrowdedEnvironment(self.crowd, self._chance),
            LetterCodec(),
            self._proxy,
            self._limits,
            wall,
            admission=self.scheduler,
            worker="host",
            dispatch=self.dispatch,
        )


async def test_no_more_attempts_than_places_are_in_a_stage_of_a_host() -> None:
    world = World(Dispatch.of(staged(2, 3, 1)))
    rows = await asyncio.gather(*await world.start(24))
    assert {row.outcome for row in rows} == {Outcome.COMPLETED}
    assert (world.crowd.most_resetting, world.crowd.most_running) == (2, 3)
    free = World(Dispatch.of(rollart(1)))
    await asyncio.gather(*await free.start(24))
    assert free.crowd.most_resetting == 24
    assert free.crowd.most_running > 3
    await asyncio.gather(world.host.close(), free.host.close())


async def test_attempts_that_are_cancelled_in_any_stage_leave_it_free() -> None:
    world = World(Dispatch.of(staged(2, 3, 1)))
    tasks = await world.start(24)
    await asyncio.sleep(8.0)
    assert {wait.name.partition("(")[0] for wait in listing()} >= {"init place", "run place"}
    world.scheduler.stop()
    assert {row.outcome for row in await asyncio.gather(*tasks)} <= {
        Outcome.CANCELLED,
        Outcome.COMPLETED,
    }
    stages = world.dispatch.stages
    assert stages is not None
    assert (stages.init.free, stages.queue.free, stages.run.free) == (2, 3, 3)
    await world.host.close()


async def test_an_attempt_in_line_is_ended_where_it_stands() -> None:
    world = World(Dispatch.of(staged(1, 1, 1)))
    stages = world.dispatch.stages
    assert stages is not None
    await stages.init.take("somebody")
    manager = await world.manager(0)
    task = asyncio.create_task(world.host.run(manager))
    await asyncio.sleep(1)
    cancellation = Cancellation("", Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
    manager.cancel(cancellation)
    (row,) = await task
    assert (row.outcome, row.turns) == (Outcome.REDUNDANT, ())
    stages.init.give_back()
    assert stages.init.free == 1
    await world.host.close()


async def test_waiting_for_a_place_to_run_in_costs_an_attempt_no_time() -> None:
    world = World(Dispatch.of(staged(1, 1, 1)), timeout_s=50)
    stages = world.dispatch.stages
    assert stages is not None
    await stages.run.take("somebody")
    (task,) = await world.start(1)
    await asyncio.sleep(100)
    stages.run.give_back()
    assert (await task).outcome is Outcome.COMPLETED
    await world.host.close()
