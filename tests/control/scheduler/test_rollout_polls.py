"""RolloutPolls: calls of rollout workers end, and workers that call no more are reported."""

import asyncio

import pytest

from rollart_flow.control.protocols import END, RunningAttempt
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.rollout_polls import LOST_S, POLL_S, RolloutPolls
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import UnknownClientError
from rollart_flow.types import EventKind, Reason
from tests.dst.environments import endless_tasks
from tests.dst.log import EventLog


def make(log: EventLog) -> tuple[RolloutScheduler, RolloutPolls]:
    scheduler = RolloutScheduler(endless_tasks(), RolloutSettings(2, 2), StalenessPolicy(1), log)
    return scheduler, RolloutPolls(scheduler)


async def test_a_call_of_a_process_that_has_ended_does_not_wait_for_ever() -> None:
    _, polls = make(EventLog())
    started = asyncio.get_running_loop().time()
    assert await polls.orders("host", 0) == (0, ())
    assert asyncio.get_running_loop().time() - started == POLL_S
    polls.close()


async def test_a_rollout_worker_that_calls_no_more_is_lost_and_reports_if_it_comes_back() -> None:
    log = EventLog()
    scheduler, polls = make(log)
    (assignment,) = await scheduler.admit("source", 0)
    await scheduler.permit(assignment.trajectory_id, "host")
    cursor, _ = await polls.orders("host", 0)
    await asyncio.sleep(LOST_S + 1)
    (crash,) = [event for event in log.events if event.kind is EventKind.CRASH]
    assert (crash.subject, crash.reason) == ("host", Reason.WORKER_LOST)
    assert crash.detail == {"attempts": 1}
    with pytest.raises(UnknownClientError):
        await polls.orders("host", cursor)
    running = [RunningAttempt(assignment.trajectory_id, assignment.group_id, 0, 0)]
    cursor, refused = await scheduler.announce("host", running)
    assert refused == ()
    scheduler.stop()
    _, told = await polls.orders("host", cursor)
    assert [each.trajectory_id for each in told] == [assignment.trajectory_id]
    polls.close()


async def test_a_rollout_worker_that_goes_on_calling_is_not_lost() -> None:
    log = EventLog()
    scheduler, polls = make(log)
    (assignment,) = await scheduler.admit("source", 0)
    await scheduler.permit(assignment.trajectory_id, "host")
    for _ in range(10):
        await polls.orders("host", 0)
    assert not [event for event in log.events if event.kind is EventKind.CRASH]
    polls.close()


async def test_the_end_of_a_run_leaves_no_call_that_waits() -> None:
    scheduler, polls = make(EventLog())
    (assignment,) = await scheduler.admit("source", 0)
    await scheduler.permit(assignment.trajectory_id, "busy")
    waiting = [asyncio.ensure_future(polls.orders(name, 0)) for name in ("busy", "idle")]
    await asyncio.sleep(0)
    scheduler.stop()
    polls.close()
    (cursor, told), idle = await asyncio.gather(*waiting)
    assert [each.trajectory_id for each in told] == [assignment.trajectory_id]
    assert idle == (END, ())
    assert await polls.orders("busy", cursor) == (END, ())


async def test_calls_that_wait_return_in_the_order_in_which_they_came() -> None:
    _, polls = make(EventLog())
    returned: list[str] = []

    async def call(name: str) -> None:
        await polls.orders(name, 0)
        returned.append(name)

    names = [f"host-{number}" for number in range(16)]
    waiting = [asyncio.ensure_future(call(name)) for name in names]
    await asyncio.sleep(0)
    polls.close()
    await asyncio.gather(*waiting)
    assert returned == names


async def test_the_end_of_a_run_may_meet_a_call_whose_time_is_over() -> None:
    _, polls = make(EventLog())
    waiting = asyncio.ensure_future(polls.orders("host", 0))
    ended = asyncio.get_running_loop().create_future()

    def end() -> None:
        polls.close()
        ended.set_result(None)

    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + POLL_S, end)
    await ended
    assert await waiting == (END, ())
