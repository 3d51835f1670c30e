"""Group commit: few commits, one order, and every failure is heard."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event as ThreadEvent
from typing import Any

import pyarrow as pa
import pytest

from rollart_flow.errors import RowsLostError, SchemaError, StoreError
from rollart_flow.operators.committer import Committer
from rollart_flow.rows import events_table
from rollart_flow.store import Run, RunInfo, RunWriter
from rollart_flow.store.encoding import Rows, Span
from rollart_flow.store.maintenance import Maintained
from rollart_flow.store.table import DataFile
from rollart_flow.types import Event, EventKind
from tests.builders import MOMENT, table, trajectory
from tests.logged import Logged

NEVER_S = 3600.0


class Watched(RunWriter):
    """A real writer that counts its commits and can be made to wait or to fail."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.sizes: list[int] = []
        self.error: Exception | None = None
        self.entered = ThreadEvent()
        self.go_on = ThreadEvent()
        self.go_on.set()

    def commit_many(
        self, rows: Mapping[str, Rows], *, transaction: int | None = None
    ) -> dict[str, Span]:
        self.entered.set()
        assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        self.sizes.append(sum(t.num_rows for t in rows.values()))
        return super().commit_many(rows, transaction=transaction)


@pytest.fixture
def writer(tmp_path: Path) -> Watched:
    return Watched.create(str(tmp_path / "run"), RunInfo("run", "coins", 0))


def committer(writer: Watched, *, rows: int = 100, seconds: float = NEVER_S) -> Committer:
    return Committer(writer, max_rows=rows, interval_s=seconds)


def one(attempt: int) -> dict[str, pa.Table]:
    return {"trajectories": table(trajectory("g00000000", attempt))}


def long_ones(attempt: int) -> dict[str, pa.Table]:
    """A trajectory of so many tokens that full commits of it rest."""
    count = 1 << 17
    attempted = trajectory(
        "g00000000",
        attempt,
        token_ids=(7,) * count,
        action_mask=(False,) + (True,) * (count - 1),
        logprobs=(0.0,) * count,
        token_versions=(-1,) + (0,) * (count - 1),
    )
    return {"trajectories": table(attempted)}


def clock_ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far the event loop's clock is ahead of time [s], which a test may change."""
    loop = asyncio.get_running_loop()
    time, ahead = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: time() + ahead[0])
    return ahead


async def after_an_hour(writer: Watched, ahead: list[float]) -> Committer:
    """A committer whose first commit took an hour, after which a full one rests for three."""
    group = committer(writer, rows=1)
    writer.go_on.clear()
    slow = asyncio.create_task(group.commit(one(0)))
    await asyncio.to_thread(writer.entered.wait, 60)
    ahead[0] = NEVER_S
    writer.go_on.set()
    await slow
    return group


def committed(writer: Watched) -> list[str]:
    rows = Run(writer.uri).trajectories.sort("seq").collect()
    return rows["trajectory_id"].to_list()


async def test_rows_wait_for_one_another_until_there_are_enough(writer: Watched) -> None:
    group = committer(writer, rows=3)
    commits = [asyncio.create_task(group.commit(one(attempt))) for attempt in range(3)]
    await asyncio.gather(*commits)
    assert writer.sizes == [3]
    assert committed(writer) == [f"g00000000-{attempt:02d}" for attempt in range(3)]
    await group.close()


async def test_full_commits_of_long_trajectories_rest_in_proportion_to_the_last_one(
    writer: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await after_an_hour(writer, clock_ahead(monkeypatch))
    long = asyncio.create_task(group.commit(long_ones(1)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not long.done()
    await group.commit(one(2), at_once=True)
    await long
    assert writer.sizes == [1, 2]
    await group.close()


async def test_a_full_commit_does_not_rest_once_no_more_rows_come(
    writer: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = clock_ahead(monkeypatch)
    group = await after_an_hour(writer, ahead)
    full = asyncio.create_task(group.commit(long_ones(1)))
    for _ in range(100):
        await asyncio.sleep(0)
    more = asyncio.create_task(group.commit(long_ones(2)))
    for _ in range(2):
        ahead[0] += 0.3 * NEVER_S
        for _ in range(100):
            await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.gather(full, more)
    assert writer.sizes == [1, 2]
    await group.close()


async def test_rows_wait_no_longer_than_the_interval(writer: Watched) -> None:
    group = committer(writer, seconds=0.01)
    await group.commit(one(0))
    assert writer.sizes == [1]
    await group.close()


async def test_the_time_of_the_commit_before_counts_towards_the_interval(
    writer: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3600.0
    ahead = clock_ahead(monkeypatch)
    group = committer(writer, seconds=4 * hour)
    writer.go_on.clear()
    first = asyncio.create_task(group.commit(one(0), at_once=True))
    await asyncio.to_thread(writer.entered.wait, 60)
    second = asyncio.create_task(group.commit(one(1)))
    await asyncio.sleep(0)
    ahead[0] = 2 * hour  # the first commit takes two, after which the committer rests for one
    writer.go_on.set()
    await first
    ahead[0] = 3.5 * hour
    for _ in range(100):
        await asyncio.sleep(0)
    assert writer.sizes == [1]
    ahead[0] = 4.5 * hour
    async with asyncio.timeout(60):
        await second
    assert writer.sizes == [1, 1]
    await group.close()


async def test_what_arrives_while_a_commit_is_under_way_is_committed_next_in_order(
    writer: Watched,
) -> None:
    group = committer(writer, rows=1)
    writer.go_on.clear()
    first = asyncio.create_task(group.commit(one(0)))
    await asyncio.to_thread(writer.entered.wait, 60)
    later = [asyncio.create_task(group.commit(one(attempt))) for attempt in (1, 2, 3)]
    await asyncio.sleep(0)
    assert not first.done(), "nothing is acknowledged before it is durable"
    writer.go_on.set()
    await asyncio.gather(first, *later)
    assert writer.sizes == [1, 3]
    assert committed(writer) == [f"g00000000-{attempt:02d}" for attempt in range(4)]
    await group.close()


async def test_events_travel_with_rows_and_by_themselves(writer: Watched) -> None:
    group = committer(writer, rows=1, seconds=0.0)
    group.report(Event(EventKind.ADMIT, "g00000000"), MOMENT)
    await group.commit(one(0))
    group.report(Event(EventKind.CRASH, "w"))
    await group.close()
    events = Run(writer.uri).events.sort("seq").collect()
    assert events["kind"].to_list() == ["admit", "crash"]
    assert writer.sizes == [2, 1]


async def test_rows_of_several_tables_are_one_commit(writer: Watched) -> None:
    group = committer(writer, rows=1)
    await group.commit({**one(0), "events": events_table([(MOMENT, Event(EventKind.RUN, "run"))])})
    assert writer.sizes == [2]
    await group.close()


async def test_a_failure_is_heard_by_all_that_wait_and_by_those_that_come(writer: Watched) -> None:
    group = committer(writer, rows=2)
    writer.error = StoreError("trajectories: No space left on device")
    outcomes = await asyncio.gather(
        group.commit(one(0)), group.commit(one(1)), return_exceptions=True
    )
    assert [str(outcome) for outcome in outcomes] == [str(writer.error)] * 2
    writer.error = None
    with pytest.raises(StoreError, match="No space left"):
        await group.commit(one(2))
    await group.close()
    assert committed(writer) == [], "after a failure nothing is written: there would be a gap"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (SchemaError("trajectories: column x is unknown"), SchemaError, "column x is unknown"),
        (MemoryError("no\nmemory"), StoreError, "cannot be committed: MemoryError: no memory"),
    ],
)
async def test_whatever_goes_wrong_nobody_waits_for_ever(
    writer: Watched, error: Exception, kind: type[Exception], said: str
) -> None:
    group = committer(writer, rows=1)
    writer.error = error
    with pytest.raises(kind, match=said):
        await group.commit(one(0))
    await group.close()


async def test_after_a_failed_commit_no_event_tells_of_what_is_not_there(writer: Watched) -> None:
    group = committer(writer, rows=1, seconds=0.0)
    group.report(Event(EventKind.DROP, "g00000000-00"))
    writer.error = StoreError("trajectories: No space left on device")
    with pytest.raises(StoreError, match="No space left"):
        await group.commit(one(0))
    writer.error = None
    group.report(Event(EventKind.EVICT, "g00000000"))
    await group.close()
    assert Run(writer.uri).events.collect().is_empty()


async def test_maintenance_that_fails_is_an_event_once_until_it_works_again(
    writer: Watched, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = committer(writer, rows=1)
    real = writer.maintain

    def broken(**_: object) -> dict[str, Maintained]:
        raise StoreError("trajectories: cannot merge files: No space left on device")

    outcomes: list[Callable[[], object]] = [broken, broken, real, broken]
    for attempt, maintain in enumerate(outcomes):
        monkeypatch.setattr(writer, "maintain", maintain)
        writer._commits = 1000
        await group.commit(one(attempt))
        assert group._maintenance is not None
        await group._maintenance
    await group.close()
    events = Run(writer.uri).events.collect()
    assert events["kind"].to_list() == [EventKind.MAINTENANCE] * 2
    assert "No space left on device" in events["detail"][0]
    assert len(logged.records) == 2
    assert len(committed(writer)) == 4, "commits go on"


async def test_only_the_sender_of_lost_rows_hears_of_them(writer: Watched) -> None:
    group = Committer(writer, max_rows=2, interval_s=NEVER_S, locate=located)
    group.report(Event(EventKind.ADMIT, "g00000000"), MOMENT)
    lost, kept = await asyncio.gather(
        group.commit({"trajectories": table(trajectory("lost", 0))}),
        group.commit(one(1)),
        return_exceptions=True,
    )
    assert (type(lost), kept) == (RowsLostError, None)
    await group.commit(one(2), at_once=True)
    await group.close()
    assert committed(writer) == ["g00000000-01", "g00000000-02"]
    assert Run(writer.uri).events.collect()["subject"].to_list() == ["g00000000"]


class Lost:
    """Rows whose process died."""

    num_rows = 1

    def write(self, first_seq: int, clock_us: int) -> list[DataFile]:
        raise RowsLostError(f"seq {first_seq} at {clock_us}")


def located(rows: pa.Table) -> Rows:
    names = rows["group_id"].to_pylist() if "group_id" in rows.column_names else []
    return Lost() if "lost" in names else rows


async def test_rows_of_another_schema_are_refused(writer: Watched) -> None:
    group = committer(writer, rows=1)
    with pytest.raises(SchemaError, match="trajectories"):
        await group.commit({"trajectories": pa.table({"nonsense": [1]})})
    await group.close()


async def test_closing_commits_what_is_queued_and_takes_nothing_more(writer: Watched) -> None:
    group = committer(writer)
    queued = asyncio.create_task(group.commit(one(0)))
    await asyncio.sleep(0)
    await group.close()
    await queued
    assert committed(writer) == ["g00000000-00"]
    with pytest.raises(StoreError, match="closing"):
        await group.commit(one(1))


async def test_a_caller_that_gives_up_takes_nobody_with_it(writer: Watched) -> None:
    group = committer(writer, rows=2)
    gone = asyncio.create_task(group.commit(one(0)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await group.commit(one(1))
    assert committed(writer) == ["g00000000-00", "g00000000-01"]
    await group.close()


async def test_maintenance_runs_beside_commits_and_is_joined(writer: Watched) -> None:
    group = committer(writer, rows=1)
    for attempt in range(51):
        await group.commit(one(attempt))
    await group.close()
    assert committed(writer) == [f"g00000000-{attempt:02d}" for attempt in range(51)]
    assert not writer.maintenance_due
