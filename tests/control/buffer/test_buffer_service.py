"""The logic of the buffer's process over a storage in memory: durability first, everything once."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

import pytest

from rollart_flow.control.buffer.buffer_service import BufferService, StoredBuffer
from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.errors import StoreError
from rollart_flow.types import Event, EventKind, Outcome, Reason, Sample
from tests.builders import batch_of, sample

COMMIT_S = 1.0
NOON = datetime(2026, 1, 1, 12)


@dataclass(frozen=True)
class Row:
    """A row of any table."""

    sample: Sample | None = None
    """The sample of its episode."""
    branch: int = 0
    number: int = 0
    staleness: int | None = None
    judged: str | None = None
    """Of a row of `verdicts`, the trajectory that it is about."""


Rows = tuple[Row, ...]


class Format:
    """Rows in tuples; refuses the samples and the groups that it is told to."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def episodes(self, rows: Rows) -> list[range]:
        begins = [place for place, row in enumerate(rows) if row.branch == 0]
        return [range(start, end) for start, end in pairwise([*begins, len(rows)])]

    def samples(self, rows: Rows) -> list[Sample]:
        return [row.sample for row in rows if row.sample is not None and row.branch == 0]

    def take(self, rows: Rows, places: Sequence[int]) -> Rows:
        return tuple(rows[place] for place in places)

    def pick(self, places: Sequence[tuple[Rows, int]]) -> Rows:
        return tuple(rows[place] for rows, place in places)

    def with_staleness(self, rows: Rows, staleness: Sequence[int]) -> Rows:
        return tuple(replace(row, staleness=age) for row, age in zip(rows, staleness, strict=True))

    def refusals(self, rows: Rows) -> list[str | None]:
        names = [sample.trajectory_id for sample in self.samples(rows)]
        return ["good" if name in self.refused else None for name in names]

    def group_refusal(self, members: Sequence[tuple[Rows, int]]) -> str | None:
        groups = {sample.group_id for sample in self.samples(self.pick(members))}
        return "varied" if groups & set(self.refused) else None

    def rows_of(self, table: str, rows: Rows, trajectory_ids: Sequence[str]) -> Rows:
        first = {row.judged: row for row in reversed(rows) if row.judged in trajectory_ids}
        return tuple(reversed(first.values()))

    def newest(self, rows: Rows, column: str) -> int:
        return max(row.number for row in rows)


class Storage:
    """Commits take `COMMIT_S`, and go on if their caller is cancelled; `error` makes them fail."""

    def __init__(self) -> None:
        self.tables: list[tuple[str, Row]] = []
        self.events: list[tuple[EventKind, str, Reason | None]] = []
        self.error: StoreError | None = None

    async def commit(self, tables: Mapping[str, Rows], *, at_once: bool = False) -> None:
        await asyncio.shield(self._commit(tables))

    async def _commit(self, tables: Mapping[str, Rows]) -> None:
        await asyncio.sleep(COMMIT_S)
        if self.error is not None:
            raise self.error
        self.tables += [(table, row) for table, rows in tables.items() for row in rows]

    def report(self, event: Event, at: datetime | None = None) -> None:
        self.events.append((event.kind, event.subject, event.reason))

    @property
    def trajectories(self) -> list[str]:
        rows = [row.sample for table, row in self.tables if table == "trajectories"]
        return [sample.trajectory_id for sample in rows if sample is not None]


def service(storage: Storage, *refused: str) -> BufferService[Rows]:
    return BufferService(rollart(1), 2, Format(*refused), storage)


def row(group_id: str, attempt: int, outcome: Outcome = Outcome.COMPLETED) -> Row:
    return Row(sample(group_id, attempt, outcome=outcome))


def group(group_id: str) -> Rows:
    return (row(group_id, 0), row(group_id, 1))


def branched(group_id: str, attempt: int, *, count: int = 3, start: int = 0) -> Rows:
    """The rows of an attempt with several branches."""
    made = sample(group_id, attempt, start=start)
    return tuple(Row(made, branch=branch) for branch in range(count))


async def test_put_returns_once_the_rows_are_durable_and_indexes_them_only_then() -> None:
    buffer = service(storage := Storage())
    putting = asyncio.create_task(buffer.put(group("g00000000")))
    await asyncio.sleep(COMMIT_S / 2)
    assert len(buffer.index) == 0
    await putting
    assert len(buffer.index) == 2
    assert storage.trajectories == ["g00000000-00", "g00000000-01"]


async def test_a_trajectory_that_is_put_again_is_committed_once() -> None:
    buffer = service(storage := Storage())
    await asyncio.gather(*(buffer.put(group("g00000000")) for _ in range(3)))
    await buffer.put((*group("g00000000"), row("g00000001", 0)))
    assert storage.trajectories == ["g00000000-00", "g00000000-01", "g00000001-00"]
    assert await buffer.commit({"bindings": (Row(),)}) == 3


async def test_a_trajectory_that_is_twice_in_one_micro_batch_is_committed_once() -> None:
    """As of an attempt that a restarted scheduler assigned again to the process that runs it."""
    buffer = service(storage := Storage())
    await buffer.put((*group("g00000000"), row("g00000000", 0)))
    assert storage.trajectories == ["g00000000-00", "g00000000-01"]
    assert len(buffer.index) == 2


async def test_verdicts_are_committed_with_their_trajectories_and_as_often() -> None:
    buffer = service(storage := Storage())
    both = tuple(Row(judged=f"g00000000-0{attempt}") for attempt in range(2))
    await asyncio.gather(*(buffer.put(group("g00000000"), {"verdicts": both}) for _ in range(2)))
    other = Row(judged="g00000001-00")
    await buffer.put((*group("g00000000"), row("g00000001", 0)), {"verdicts": (*both, other)})
    assert [row for table, row in storage.tables if table == "verdicts"] == [*both, other]
    twice = row("g00000002", 0)
    third = Row(judged="g00000002-00")
    await buffer.put((twice, twice), {"verdicts": (third, third)})
    assert [row for table, row in storage.tables if table == "verdicts"] == [*both, other, third]


async def test_a_put_beside_a_commit_of_the_same_trajectory_waits_for_that_commit() -> None:
    buffer = service(Storage())
    first = asyncio.create_task(buffer.put((row("g00000000", 0),)))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await buffer.put((row("g00000000", 0),))
    assert asyncio.get_running_loop().time() - began == COMMIT_S
    await first


async def test_a_cancelled_caller_leaves_the_commit_to_the_others() -> None:
    buffer = service(storage := Storage())
    first = asyncio.create_task(buffer.put((row("g00000000", 0),)))
    second = asyncio.create_task(buffer.put((row("g00000000", 0),)))
    await asyncio.sleep(0)
    second.cancel()
    await first
    assert second.cancelled()
    assert storage.trajectories == ["g00000000-00"]


async def test_rows_whose_caller_is_cancelled_are_committed_once_and_indexed() -> None:
    buffer = service(storage := Storage())
    first = asyncio.create_task(buffer.put(group("g00000000")))
    await asyncio.sleep(COMMIT_S / 2)
    first.cancel()
    await buffer.put(group("g00000000"))
    assert first.cancelled()
    assert storage.trajectories == ["g00000000-00", "g00000000-01"]
    assert len(buffer.index) == 2


async def test_a_repeated_question_for_a_recorded_step_gets_the_same_batch() -> None:
    buffer = service(Storage())
    await buffer.put(group("g00000000"))
    batch = await buffer.get_batch(1, 0, 2)
    await buffer.commit({"steps": (Row(number=1),)})
    assert await buffer.get_batch(1, 0, 2) == batch


async def test_a_failed_commit_reaches_every_caller_and_indexes_nothing() -> None:
    buffer = service(storage := Storage())
    storage.error = StoreError("no space left")
    puts = (buffer.put(group("g00000000")) for _ in range(2))
    assert await asyncio.gather(*puts, return_exceptions=True) == [storage.error] * 2
    assert len(buffer.index) == 0
    storage.error = None
    await buffer.put(group("g00000000"))
    assert len(buffer.index) == 2


async def test_rows_of_a_batch_stay_until_its_step_is_committed() -> None:
    buffer = service(Storage())
    await buffer.put((*group("g00000000"), *group("g00000001")))
    batch = await buffer.get_batch(1, 1, 2)
    assert buffer._rows.keys() == {"g00000001-00", "g00000001-01"}
    rows = buffer.batch_rows(1)
    assert rows is not None
    assert tuple(s.trajectory_id for s in Format().samples(rows)) == batch.trajectory_ids
    assert [each.staleness for each in rows] == [1, 1]
    await buffer.commit({"steps": (Row(number=1),)})
    assert buffer.batch_rows(1) is None


async def test_a_batch_has_all_rows_of_its_episodes_with_the_staleness_of_the_episode() -> None:
    buffer = service(storage := Storage())
    await buffer.put((*branched("g00000000", 0, start=0), *branched("g00000000", 1, start=1)))
    assert len(storage.tables) == 6
    assert len(buffer.index) == 2, "a group counts episodes"
    batch = await buffer.get_batch(1, 1, 2)
    assert batch.trajectory_ids == ("g00000000-00", "g00000000-01")
    assert batch.staleness == (1, 0)
    rows = buffer.batch_rows(1)
    assert rows is not None
    assert [(row.branch, row.staleness) for row in rows] == [
        (0, 1), (1, 1), (2, 1), (0, 0), (1, 0), (2, 0),
    ]  # fmt: skip


async def test_of_an_attempt_that_ran_twice_and_branched_otherwise_the_first_counts() -> None:
    buffer = service(storage := Storage())
    await buffer.put((*branched("g0", 0, count=2), *branched("g0", 0, count=3), row("g1", 0)))
    await buffer.put(branched("g0", 0, count=4))
    committed = [each.branch for table, each in storage.tables if table == "trajectories"]
    assert committed == [0, 1, 0]
    assert await buffer.commit({"bindings": (Row(),)}) == 3


async def test_all_rows_of_an_episode_are_released_together() -> None:
    released: list[int] = []
    buffer = BufferService(
        rollart(1), 2, Format("g00000000-00"), Storage(),
        release=lambda rows: released.extend(row.branch for row in rows),
    )  # fmt: skip
    await buffer.put((*branched("g00000000", 0), *branched("g00000000", 1, count=2)))
    assert released == [0, 1, 2], "what a filter refused"
    await buffer.put(branched("g00000000", 1, count=3))
    assert released == [0, 1, 2, 0, 1, 2], "what was there before"
    buffer.report([(NOON, Event(EventKind.ABANDON, "g00000000"))])
    assert released == [0, 1, 2, 0, 1, 2, 0, 1]


async def test_rows_are_released_once_they_are_neither_pending_nor_in_an_untrained_batch() -> None:
    released: list[str] = []

    def release(rows: Rows) -> None:
        released.extend(sample.trajectory_id for sample in Format().samples(rows))

    storage = Storage()
    buffer = BufferService(rollart(1), 2, Format("g00000002-00"), storage, release=release)
    await buffer.put((*group("g00000000"), row("g00000001", 0)))
    assert not released
    await buffer.put((row("g00000000", 0), row("g00000001", 1, Outcome.FAILED)))
    assert released == ["g00000000-00", "g00000001-01"], "what was there, and what is not trained"
    released.clear()
    await buffer.put((*group("g00000002"), row("g00000000", 2)))
    assert released == ["g00000002-00", "g00000000-02"], "what a filter refused, and what is late"
    released.clear()
    await buffer.get_batch(1, 0, 2)
    assert not released
    await buffer.commit({"steps": (Row(number=1),)})
    assert released == ["g00000000-00", "g00000000-01"]
    released.clear()
    buffer.report([(NOON, Event(EventKind.ABANDON, "g00000001"))])
    storage.error = StoreError("no space left")
    with pytest.raises(StoreError):
        await buffer.put((row("g00000003", 0),))
    assert released == ["g00000001-00", "g00000003-00"]


async def test_rows_of_a_numbered_table_are_committed_once_for_each_number() -> None:
    buffer = service(storage := Storage())
    manifest = {"batches": (Row(number=1), Row(number=1))}
    await asyncio.gather(buffer.commit(manifest), buffer.commit(manifest))
    await buffer.commit(manifest)
    await buffer.commit({"batches": (Row(number=2),)})
    assert [(table, each.number) for table, each in storage.tables] == [
        ("batches", 1), ("batches", 1), ("batches", 2),
    ]  # fmt: skip


async def test_a_refused_trajectory_is_dropped_with_an_event_and_its_group_lacks_it() -> None:
    buffer = service(storage := Storage(), "g00000000-00")
    await buffer.put(group("g00000000"))
    assert buffer._rows.keys() == {"g00000000-01"}
    assert storage.events == [(EventKind.DROP, "g00000000-00", Reason.FILTERED)]
    assert len(storage.trajectories) == 2, "its row stays in the table"


async def test_a_refused_group_is_evicted_whole() -> None:
    buffer = service(storage := Storage(), "g00000000")
    await buffer.put(group("g00000000"))
    assert not buffer._rows.keys()
    evicted = [(EventKind.EVICT, f"g00000000-0{i}", Reason.GROUP_FILTERED) for i in range(2)]
    assert storage.events == evicted


async def test_the_pending_members_of_an_abandoned_group_are_evicted() -> None:
    buffer = service(storage := Storage())
    await buffer.put((row("g00000000", 0), row("g00000001", 0)))
    abandoned = Event(EventKind.ABANDON, "g00000000", reason=Reason.GROUP_ABANDONED)
    buffer.report([(NOON, abandoned)])
    assert buffer._rows.keys() == {"g00000001-00"}
    assert [kind for kind, *_ in storage.events] == [EventKind.ABANDON, EventKind.EVICT]


async def test_a_buffer_goes_on_from_what_the_tables_say() -> None:
    buffer = service(storage := Storage(), "g00000003-00")
    pending = (*group("g00000002"), row("g00000003", 0))
    batch = batch_of(1, "g00000001")
    buffer.restore(
        StoredBuffer(
            pending=Format().samples(pending),
            rows=pending,
            committed=4,
            known=["g00000000-00"],
            closed={"g00000000": Reason.GROUP_EVICTED},
            batches=[batch],
            untrained={1: group("g00000001")},
            newest={"batches": 1},
        )
    )
    assert storage.events == [(EventKind.DROP, "g00000003-00", Reason.FILTERED)]
    assert buffer._rows.keys() == {"g00000002-00", "g00000002-01"}
    await buffer.put((row("g00000000", 0), *group("g00000002")))
    await buffer.commit({"batches": (Row(number=1),)})
    assert storage.tables == [], "all of it was committed before"
    assert await buffer.get_batch(1, 0, 2) == batch
    assert buffer.batch_rows(1) == group("g00000001")
    assert await buffer.commit({"steps": (Row(number=1),)}) == 4
