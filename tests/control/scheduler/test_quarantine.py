"""A task whose boxes fail is attempted no more."""

from collections.abc import Iterator

import pytest

from rollart_flow.errors import RunFailedError
from rollart_flow.types import EventKind, Outcome, Reason, Task
from tests.builders import committed
from tests.control.scheduler.test_rollout_scheduler import Bench, ids


def rounds(*names: str) -> Iterator[tuple[Task, int]]:
    """Tasks that come again and again."""
    cursor = 0
    while True:
        yield Task(names[cursor % len(names)], "domain"), cursor
        cursor += 1


async def test_open_groups_are_abandoned_and_no_group_of_the_task_follows() -> None:
    bench = Bench(batch_size=4, tasks=rounds("bad", "good"))
    bad, *_ = await bench.admit_all()
    await bench.start(bad)
    bench.scheduler.quarantine("bad", "no image")
    bench.scheduler.quarantine("bad", "no image, again")
    assert await bench.cancelled() == {
        bad.trajectory_id: (Outcome.REDUNDANT, Reason.TASK_QUARANTINED)
    }
    (event,) = bench.log.of(EventKind.QUARANTINE)
    assert (event.subject, event.reason) == ("bad", Reason.SANDBOX_FAILED)
    assert event.detail == {"error": "no image"}
    (abandoned,) = bench.log.of(EventKind.ABANDON)
    assert (abandoned.subject, abandoned.reason) == ("g00000000", Reason.TASK_QUARANTINED)
    taken = await bench.admit_all()
    assert {each.task.task_id for each in taken} == {"good"}
    assert ids(taken) == ["g00000003-00", "g00000003-01"], "the credit came back, cursors go on"


async def test_a_complete_group_of_the_task_stays() -> None:
    bench = Bench(batch_size=4, tasks=rounds("bad", "good"))
    for attempt in (await bench.admit_all())[:2]:
        await bench.start(attempt)
        bench.scheduler.apply(committed(attempt))
    bench.scheduler.quarantine("bad", "no image")
    assert not bench.log.of(EventKind.ABANDON)


async def test_a_run_whose_tasks_are_all_in_quarantine_fails() -> None:
    bench = Bench(batch_size=4, tasks=rounds("bad"))
    bench.scheduler.quarantine("bad", "no image")
    assert await bench.scheduler.admit("source", 0) == ()
    failure = bench.scheduler.failure
    assert isinstance(failure, RunFailedError)
    assert "in quarantine" in str(failure)


async def test_a_restarted_scheduler_knows_the_tasks_without_another_event() -> None:
    bench = Bench(batch_size=4, tasks=rounds("bad", "good"))
    bench.scheduler.quarantine("bad", None)
    bench.scheduler.restore(())
    assert {each.task.task_id for each in await bench.admit_all()} == {"good"}
    assert not bench.log.of(EventKind.QUARANTINE)


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_run_that_has_stopped_reports_no_quarantine(*, stopped: bool) -> None:
    bench = Bench(batch_size=4, tasks=rounds("bad", "good"))
    if stopped:
        bench.scheduler.stop()
    bench.scheduler.quarantine("bad", "no image")
    assert bool(bench.log.of(EventKind.QUARANTINE)) is not stopped
