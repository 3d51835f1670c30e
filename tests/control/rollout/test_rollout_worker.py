"""RolloutWorker: cancellations reach the attempts that run here."""

import asyncio
from random import Random

import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import Change, Order
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.control.rollout.rollout_worker import RolloutWorker
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import Assignment, AttemptLimits, Outcome, Reason, Sampling
from tests.builders import committed
from tests.dst.environments import FaultyEnvironment, LetterCodec, endless_tasks, wall
from tests.dst.log import EventLog
from tests.dst.plans import STOP, Faults


def make_scheduler(incarnation: int = 0) -> RolloutScheduler:
    sampling = Sampling(max_tokens=4, stop_token_ids=(STOP,))
    return RolloutScheduler(
        endless_tasks(),
        RolloutSettings(4, 2, sampling=sampling),
        StalenessPolicy(1),
        EventLog(),
        incarnation=incarnation,
    )


def hanging(assignment: Assignment, scheduler: RolloutScheduler, host: str) -> EnvManager:
    """An attempt whose environment never answers."""
    return attempt_at(assignment, scheduler, host, Faults(environment_hangs=1.0))


def attempt_at(
    assignment: Assignment, scheduler: RolloutScheduler, host: str, faults: Faults
) -> EnvManager:
    """An attempt without an engine worker."""
    return EnvManager(
        assignment,
        lambda: FaultyEnvironment(Random(0), faults),
        LetterCodec(),
        LLMProxy([], EventLog()),
        AttemptLimits(
            max_turns=3, context_tokens=100, step_timeout_s=1e6, trajectory_timeout_s=1e6
        ),
        wall,
        admission=scheduler,
        worker=host,
    )


async def start(
    host: RolloutWorker, scheduler: RolloutScheduler, count: int
) -> list[asyncio.Task[Outcome]]:
    async def run(assignment: Assignment) -> Outcome:
        return (await host.run(hanging(assignment, scheduler, host.name)))[0].outcome

    tasks = []
    for index in range(count):
        (assignment,) = await scheduler.admit("source", index)
        tasks.append(asyncio.create_task(run(assignment)))
    await asyncio.sleep(100)
    return tasks


async def test_cancellations_reach_what_runs_here() -> None:
    scheduler = make_scheduler()
    host = RolloutWorker("host", scheduler)
    tasks = await start(host, scheduler, 3)
    assert len(tasks) == 3
    assert set(host.running) == {"g00000000-00", "g00000000-01", "g00000001-00"}
    scheduler.stop()
    assert await asyncio.gather(*tasks) == [Outcome.CANCELLED] * 3
    assert list(host.running) == []
    await host.close()
    assert len(asyncio.all_tasks()) == 1


async def test_an_attempt_that_runs_twice_is_cancelled_twice() -> None:
    """A restarted scheduler may hand out an attempt that runs here already."""
    scheduler = make_scheduler()
    host = RolloutWorker("host", scheduler)
    (assignment,) = await scheduler.admit("source", 0)
    doubles = [hanging(assignment, scheduler, "host") for _ in range(2)]
    tasks = [asyncio.create_task(host.run(manager)) for manager in doubles]
    await asyncio.sleep(10)
    assert host.running == (assignment.trajectory_id,)
    scheduler.stop()
    assert [t.outcome for (t,) in await asyncio.gather(*tasks)] == [Outcome.CANCELLED] * 2
    assert list(host.running) == []
    await host.close()


async def test_a_cancellation_for_what_is_over_is_ignored() -> None:
    scheduler = make_scheduler()
    host = RolloutWorker("host", scheduler)
    (task,) = await start(host, scheduler, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    scheduler.stop()
    await asyncio.sleep(10)
    await host.close()


async def test_after_the_schedulers_restart_unwanted_attempts_end() -> None:
    scheduler = make_scheduler()
    host = RolloutWorker("host", scheduler)
    tasks = await start(host, scheduler, 2)
    host._admission = make_scheduler(incarnation=1)  # the address now leads to the new one
    scheduler.rollout_worker_lost("host")  # its call to the old one ends
    assert await asyncio.gather(*tasks) == [Outcome.REDUNDANT] * 2
    await host.close()


async def test_a_broken_connection_is_raised_once_and_then_tried_again() -> None:
    class Flaky(RolloutScheduler):
        broken = True

        async def orders(self, host: str, after: int) -> tuple[int, tuple[Order, ...]]:
            if self.broken:
                raise ConnectionError("coordinator gone")
            return await super().orders(host, after)

    scheduler = Flaky(endless_tasks(), RolloutSettings(4, 2), StalenessPolicy(1), EventLog())
    host = RolloutWorker("host", scheduler)
    (first,) = await start(host, scheduler, 1)
    (assignment,) = await scheduler.admit("source", 1)
    with pytest.raises(ConnectionError, match="coordinator gone"):
        await host.run(hanging(assignment, scheduler, "host"))
    scheduler.broken = False
    second = asyncio.create_task(host.run(hanging(assignment, scheduler, "host")))
    await asyncio.sleep(1)
    scheduler.stop()
    assert await first is Outcome.CANCELLED
    assert (await second)[0].reason is Reason.RUN_STOPPED
    await host.close()


async def ahead(kind: type[RolloutScheduler]) -> tuple[RolloutScheduler, EnvManager]:
    """A scheduler whose only credit is held, and an attempt that is reset ahead."""
    scheduler = kind(
        endless_tasks(), RolloutSettings(1, 1), StalenessPolicy(0), EventLog(), ahead=1
    )
    (first,) = await scheduler.admit("source", 0)
    scheduler.apply(committed(first))
    (second,) = await scheduler.admit("source", 1)
    return scheduler, attempt_at(second, scheduler, "host", Faults())


async def test_a_clearance_reaches_what_was_reset_ahead() -> None:
    scheduler, attempt = await ahead(RolloutScheduler)
    host = RolloutWorker("host", scheduler)
    running = asyncio.create_task(host.run(attempt))
    await asyncio.sleep(100)
    assert not running.done()
    scheduler.apply(Change(evicted=("g00000000", Reason.STALENESS_BOUND)))
    (trajectory,) = await running
    assert trajectory.reason is Reason.ENGINE_ERROR, "it asked for tokens, which nobody samples"
    await host.close()


async def test_a_broken_connection_ends_the_wait_for_a_clearance() -> None:
    class Breaking(RolloutScheduler):
        async def orders(self, host: str, after: int) -> tuple[int, tuple[Order, ...]]:
            await asyncio.sleep(100)
            raise ConnectionError("coordinator gone")

    scheduler, attempt = await ahead(Breaking)
    host = RolloutWorker("host", scheduler)
    with pytest.raises(ConnectionError, match="coordinator gone"):
        await host.run(attempt)
    await asyncio.gather(host.close(), return_exceptions=True)
