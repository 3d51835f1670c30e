"""What a run recorded is sorted out again: nothing lost, nothing twice."""

from dataclasses import replace

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.protocols import Change
from rollart_flow.control.recovery import RecoveredControl, recover
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.types import Event, EventKind, Outcome, Reason, Sample, Task
from tests.builders import sample
from tests.dst.log import EventLog


def group(cursor: int) -> str:
    return f"g{cursor:08d}"


def admit(cursor: int) -> Event:
    detail = {"cursor": cursor, "task_id": f"t{cursor}", "payload": f'{{"n":{cursor}}}'}
    return Event(EventKind.ADMIT, group(cursor), domain="a", detail=detail)


def prepare(cursor: int) -> Event:
    return replace(admit(cursor), kind=EventKind.PREPARE)


def evict(cursor: int, attempt: int) -> Event:
    detail = {"group_id": group(cursor)}
    reason = Reason.STALENESS_BOUND
    return Event(EventKind.EVICT, f"{group(cursor)}-{attempt:02d}", reason, detail=detail)


def in_batch(*samples: Sample) -> dict[str, str]:
    return {each.trajectory_id: each.group_id for each in samples}


def test_nothing_recorded_is_a_fresh_start() -> None:
    assert recover([], [], {}) == RecoveredControl(0, (), (), (), {}, (), ())


def test_groups_go_on_where_they_stopped() -> None:
    trained, trained_too = sample(group(0), 0), sample(group(0), 1)
    waiting = sample(group(1), 0)
    failed = sample(group(2), 0, outcome=Outcome.FAILED)
    evicted = sample(group(3), 0)
    of_abandoned = sample(group(4), 0)
    filtered = sample(group(5), 0)
    events = [
        *map(admit, range(6)),
        evict(3, 0),
        Event(EventKind.ABANDON, group(4), reason=Reason.GROUP_ABANDONED),
        Event(EventKind.DROP, filtered.trajectory_id, reason=Reason.FILTERED),
    ]
    rows = [trained, trained_too, waiting, failed, evicted, of_abandoned, filtered]
    recovered = recover(events, rows, in_batch(trained, trained_too))
    assert recovered.next_cursor == 6
    first, second, third = recovered.groups
    assert (first.group_id, first.task) == (group(1), Task("t1", "a", '{"n":1}'))
    assert first.samples == (waiting,)
    assert (second.group_id, second.samples) == (group(2), (failed,))
    assert (third.group_id, third.dropped) == (group(5), frozenset({filtered.trajectory_id}))
    assert recovered.pending == (waiting, of_abandoned), "the latter only to be dropped"
    gone = (trained, trained_too, failed, evicted, filtered)
    assert recovered.known == tuple(each.trajectory_id for each in gone)
    assert recovered.closed == {
        group(0): Reason.GROUP_COMPLETE,
        group(3): Reason.GROUP_EVICTED,
        group(4): Reason.GROUP_EVICTED,
    }


def test_a_group_that_was_opened_ahead_is_continued_as_it_was() -> None:
    recovered = recover([prepare(0), admit(0), prepare(1), prepare(2)], [], {})
    assert recovered.next_cursor == 3
    assert [(each.group_id, each.admitted) for each in recovered.groups] == [
        (group(0), True),
        (group(1), False),
        (group(2), False),
    ]


def test_a_group_whose_admission_was_not_recorded_is_not_admitted_again() -> None:
    """Its rows are there, so that its ids are taken."""
    recovered = recover([admit(0)], [sample(group(7), 0)], {})
    assert recovered.next_cursor == 8
    assert [record.group_id for record in recovered.groups] == [group(0)]


def test_a_scheduler_that_outlived_the_buffer_is_told_what_became_of_the_groups() -> None:
    rows = [sample(group(0), 0), sample(group(1), 0), sample(group(2), 0), sample(group(2), 1)]
    filtered = Event(EventKind.DROP, f"{group(2)}-00", reason=Reason.FILTERED)
    events = [*map(admit, range(3)), evict(1, 0), filtered]
    assert recover(events, rows, in_batch(rows[0])).changes == (
        Change(committed=rows[0]),
        Change(consumed=group(0)),
        Change(committed=rows[1]),
        Change(evicted=(group(1), Reason.STALENESS_BOUND)),
        Change(committed=rows[2]),
        Change(dropped=(f"{group(2)}-00", Reason.FILTERED)),
        Change(committed=rows[3]),
    )


def test_what_left_with_its_group_and_whose_event_was_lost_is_dropped_again() -> None:
    """Found by the fuzzer (seed 375): killed after the commit of a row, before that of its drop."""
    trained, surplus = sample(group(0), 0), sample(group(0), 1)
    recovered = recover([admit(0)], [trained, surplus], in_batch(trained))
    events = EventLog()
    buffer = SampleBuffer(StalenessPolicy(1), 1, events)
    buffer.restore(recovered.pending, known=recovered.known, closed=recovered.closed)
    assert len(buffer) == 0
    (drop,) = events.of(EventKind.DROP)
    assert (drop.subject, drop.reason) == (surplus.trajectory_id, Reason.GROUP_COMPLETE)
