"""What must hold for every simulated run, told by its record alone."""

import math

from rollart_flow.control.schedules import Schedule
from rollart_flow.control.staleness import StalenessPolicy, StartBound
from rollart_flow.types import EventKind, Outcome, Reason
from tests.control.cluster import Record


def check(record: Record, schedule: Schedule, *, steps: int) -> None:
    """Every step once, the schedule's invariant, whole fresh groups, and nothing lost."""
    numbers = list(range(1, steps + 1))
    assert record.trained == sorted(record.batches) == numbers
    assert schedule.violations(record.batches.values()) == ()
    check_batches(record, schedule)
    check_departures(record)


def check_batches(record: Record, schedule: Schedule, group_size: int = 4) -> None:
    """The bound by the rows themselves, whole groups, each trajectory trained on once."""
    assert isinstance(schedule.bound, StalenessPolicy)
    bound = math.ceil(schedule.bound.alpha)
    for batch in record.batches.values():
        rows = [record.rows[t] for t in batch.trajectory_ids]
        assert len(rows) == 16
        for row, group_id in zip(rows, batch.group_ids, strict=True):
            assert row.group_id == group_id
            assert row.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED)
            assert row.policy_version_start is not None
            age = batch.policy_version - row.policy_version_start
            assert age <= bound or isinstance(schedule.bound, StartBound)
        assert all(batch.group_ids.count(g) == group_size for g in batch.group_ids)
    trained = [t for batch in record.batches.values() for t in batch.trajectory_ids]
    assert len(trained) == len(set(trained))


def check_departures(record: Record) -> None:
    """Each good row is trained on, or pending, or has exactly one event with a reason."""
    events = record.events.of(EventKind.DROP) + record.events.of(EventKind.EVICT)
    assert all(isinstance(event.reason, Reason) for event in events)
    left = [event.subject for event in events]
    assert len(left) == len(set(left))
    trained = {t for batch in record.batches.values() for t in batch.trajectory_ids}
    assert not trained & set(left)
    good = {
        t
        for t, row in record.rows.items()
        if row.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED)
        and row.policy_version_start is not None
    }
    assert trained | set(left) <= good
    assert len(good) - len(trained) - len(left) == record.pending


def check_all_have_rows(record: Record) -> None:
    """Every attempt that a source has taken ended in exactly one trajectory."""
    assert {a.trajectory_id for a in record.admitted} == record.rows.keys()
