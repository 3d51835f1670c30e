"""The buffer as a plain object over real tables: what its actor does, without the actor."""

import asyncio
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow.algorithms.filters import varied
from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.errors import StoreError
from rollart_flow.operators.buffer import BufferActor, BufferSettings
from rollart_flow.operators.filters import NamedFilter
from rollart_flow.rows import events_table, from_ipc, to_ipc
from rollart_flow.sandbox.pool_boxes import BoxRecord
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunInfo, RunStatus, RunWriter
from rollart_flow.types import Event, EventKind, Outcome, Reason, Trajectory
from tests.builders import MOMENT, group, manifest, step_row, table, trajectory
from tests.pending import complete_groups
from tests.runs import ids

SIZE = 4


@pytest.fixture
def uri(tmp_path: Path) -> str:
    run = str(tmp_path / "run")
    RunWriter.create(run, RunInfo("run", "coins", 0))
    return run


async def started(
    uri: str, *filters: pl.Expr, alpha: float = 1, varied: pl.Expr | None = None
) -> BufferActor:
    settings = BufferSettings(
        rollart(alpha),
        group_size=2,
        commit_rows=1,
        commit_ms=5.0,
        filters=tuple(NamedFilter("good", each) for each in filters),
        group_filters=() if varied is None else (NamedFilter("varied", varied),),
    )
    actor = BufferActor(uri, settings)
    await actor.start()
    return actor


async def replacing(uri: str) -> BufferActor:
    """The actor as Ray starts it again after its process died."""
    actor = BufferActor(uri, BufferSettings(rollart(1), 2, commit_rows=1, commit_ms=5.0))
    actor._replaces = True
    await actor.start()
    return actor


async def test_who_asks_for_rows_early_gets_them_when_their_batch_is_formed(uri: str) -> None:
    actor = await started(uri)
    early = asyncio.create_task(actor.next_rows(1))
    await actor.put(sent(*group("g00000001"), *group("g00000000")))
    assert not early.done()
    batch = await actor.get_batch(1, 0, SIZE)
    assert from_ipc(await early) == from_ipc(await actor.rows(batch))
    await actor.commit({"batches": to_ipc(manifest(1, list(batch.trajectory_ids)))})
    another = await replacing(uri)
    assert from_ipc(await another.next_rows(1)).num_rows == SIZE, "formed before, and not trained"
    await another.commit({"steps": to_ipc(step_row(1))})
    for each in (another, await replacing(uri)):
        assert await each.next_rows(1) == b"", "it is trained"


async def test_a_batch_whose_step_was_recorded_is_handed_out_again_from_the_tables(
    uri: str,
) -> None:
    """A trainer died while its step was being recorded; the next one trains the step again."""
    first = await started(uri)
    await first.put(sent(*group("g00000001"), *group("g00000000")))
    batch = await first.get_batch(1, 0, SIZE)
    await first.commit({"batches": to_ipc(manifest(1, list(batch.trajectory_ids)))})
    await first.commit({"steps": to_ipc(step_row(1))})
    for actor in (first, await replacing(uri)):
        rows = from_ipc(await actor.rows(batch))
        assert "diff" not in rows.column_names
        assert rows["trajectory_id"].to_pylist() == list(batch.trajectory_ids)
        assert rows["advantage"].to_pylist() == [[1.0]] * SIZE


async def admit(actor: BufferActor, *groups: str) -> None:
    """What the scheduler reports when it opens groups."""
    detail = {"task_id": "toss", "payload": "{}"}
    await actor.report(
        [(MOMENT, Event(EventKind.ADMIT, name, domain="coin", detail=detail)) for name in groups]
    )


def mixed(group_id: str) -> list[Trajectory]:
    """A group whose rewards differ."""
    return [trajectory(group_id, attempt, reward=float(attempt)) for attempt in range(2)]


def sent(*trajectories: Trajectory) -> bytes:
    """Rows as they are sent to the buffer."""
    return to_ipc(table(*trajectories))


def dropped(uri: str) -> list[tuple[str, str]]:
    kinds = [EventKind.DROP, EventKind.EVICT]
    rows = Run(uri).events.filter(pl.col("kind").is_in(kinds)).sort("seq").collect()
    return rows.select("subject", "reason").rows()


def evaluation(version: int, value: float) -> dict[str, bytes]:
    row: dict[str, Any] = {
        "step": version,
        "policy_version": version,
        "domain": "coin",
        "metric": "success",
        "value": value,
        "n": 2,
    }
    return {"evaluations": to_ipc(to_table("evaluations", [row]))}


async def test_what_was_put_is_in_the_table_before_put_returns(uri: str) -> None:
    actor = await started(uri)
    await actor.put(sent(*group("g00000000")))
    assert ids(Run(uri).trajectories) == ["g00000000-00", "g00000000-01"]
    await actor.close(RunStatus.FINISHED)


async def test_the_first_commit_of_a_trajectory_wins(uri: str) -> None:
    actor = await started(uri)
    await actor.put(sent(trajectory("g00000000", 0, reward=1.0)))
    await actor.put(sent(trajectory("g00000000", 0, reward=0.25)))
    await asyncio.gather(*(actor.put(sent(trajectory("g00000000", 1))) for _ in range(5)))
    rows = Run(uri).trajectories.sort("seq").collect()
    assert rows.select("trajectory_id", "reward").rows() == [
        ("g00000000-00", 1.0), ("g00000000-01", 1.0),
    ]  # fmt: skip
    await actor.close(RunStatus.FINISHED)


async def test_all_that_put_the_same_at_once_wait_until_it_is_durable(uri: str) -> None:
    actor = await started(uri)
    puts = [asyncio.create_task(actor.put(sent(trajectory("g00000000", 0)))) for _ in range(3)]
    await asyncio.wait(puts, return_when=asyncio.FIRST_COMPLETED)
    assert ids(Run(uri).trajectories) == ["g00000000-00"]
    await asyncio.gather(*puts)
    await actor.close(RunStatus.FINISHED)


async def test_a_batch_has_its_rows_in_order_with_their_staleness(uri: str) -> None:
    actor = await started(uri)
    await actor.put(sent(trajectory("g00000001", 1, start=1), trajectory("g00000000", 1)))
    waiting = asyncio.create_task(actor.get_batch(1, 1, SIZE))
    await actor.put(sent(trajectory("g00000000", 0), trajectory("g00000001", 0, start=1)))
    batch = await waiting
    assert batch.trajectory_ids == (
        "g00000000-00", "g00000000-01", "g00000001-00", "g00000001-01",
    )  # fmt: skip
    rows = from_ipc(await actor.rows(batch))
    assert rows["trajectory_id"].to_pylist() == list(batch.trajectory_ids)
    assert rows["staleness"].to_pylist() == list(batch.staleness) == [1, 1, 0, 0]
    assert rows["token_ids"].to_pylist()[1] == [1, 2, 3, 4, 1]
    assert "diff" not in rows.column_names
    assert await actor.get_batch(1, 1, SIZE) == batch, "asked again it answers the same"
    await actor.close(RunStatus.FINISHED)


async def test_what_is_too_old_is_evicted_and_said(uri: str) -> None:
    actor = await started(uri)
    await actor.put(sent(*group("g00000000"), *group("g00000001", start=2)))
    await actor.put(sent(*group("g00000002", start=2)))
    batch = await actor.get_batch(4, 2, SIZE)
    assert set(batch.group_ids) == {"g00000001", "g00000002"}
    await actor.close(RunStatus.FINISHED)
    assert dropped(uri) == [
        ("g00000000-00", Reason.STALENESS_BOUND), ("g00000000-01", Reason.STALENESS_BOUND),
    ]  # fmt: skip


async def test_what_is_left_of_an_abandoned_group_leaves_with_it(uri: str) -> None:
    """Found by the fuzzer (seed 20): under `areal` nothing else would ever evict it."""
    actor = await started(uri)
    await admit(actor, "g00000000")
    early, late = (trajectory("g00000000", attempt) for attempt in range(2))
    await actor.put(sent(early))
    abandoned = Event(EventKind.ABANDON, "g00000000", reason=Reason.GROUP_ABANDONED)
    await actor.report([(MOMENT, abandoned)])
    await actor.put(sent(late))
    await actor.close(RunStatus.FINISHED)
    assert dropped(uri) == [
        (early.trajectory_id, Reason.GROUP_ABANDONED),
        (late.trajectory_id, Reason.GROUP_EVICTED),
    ]
    assert not actor._service._rows.keys()


async def test_a_filter_drops_rows_and_says_so(uri: str) -> None:
    actor = await started(uri, pl.col("reward") > 0)
    await actor.put(sent(trajectory("g00000000", 0), trajectory("g00000000", 1, reward=-1.0)))
    await actor.put(sent(trajectory("g00000000", 2), trajectory("g00000000", 3)))
    await actor.put(sent(*group("g00000001")))
    batch = await actor.get_batch(1, 0, SIZE)
    assert "g00000000-01" not in batch.trajectory_ids
    await actor.close(RunStatus.FINISHED)
    assert ("g00000000-01", Reason.FILTERED) in dropped(uri)
    assert len(ids(Run(uri).trajectories)) == 6, "what is dropped stays in the table"


async def test_what_is_filtered_before_reward_is_said_too(uri: str) -> None:
    actor = await started(uri, pl.col("attempt") > 0)
    refused = trajectory("g00000000", 0, reward=None)
    broken = trajectory("g00000000", 1, reward=None, outcome=Outcome.FAILED)
    await actor.put(sent(refused, broken))
    await actor.close(RunStatus.FINISHED)
    assert dropped(uri) == [("g00000000-00", Reason.FILTERED)]


async def test_a_new_process_goes_on_where_the_tables_say(uri: str) -> None:
    first = await started(uri)
    await admit(first, "g00000000", "g00000001")
    await first.put(sent(*group("g00000000"), trajectory("g00000001", 0, start=1)))
    second = await started(uri)  # the first one was killed: it never closed
    await second.put(sent(*group("g00000000")))  # sent again, since nobody heard the answer
    await second.put(sent(trajectory("g00000001", 1, start=1)))
    batch = await second.get_batch(1, 1, SIZE)
    assert batch.staleness == (1, 1, 0, 0)
    assert len(ids(Run(uri).trajectories)) == SIZE
    with pytest.raises(StoreError):
        await first.put(sent(trajectory("g00000002", 0)))
    await second.close(RunStatus.FINISHED)


async def test_a_batch_whose_manifest_is_written_is_formed_again_as_it_was(uri: str) -> None:
    first = await started(uri)
    await first.put(sent(*group("g00000001"), *group("g00000000"), *group("g00000002")))
    batch = await first.get_batch(1, 0, SIZE)
    await first.commit({"batches": to_ipc(manifest(1, list(batch.trajectory_ids)))})
    second = await started(uri)
    assert (await second.get_batch(1, 0, SIZE)).trajectory_ids == batch.trajectory_ids
    rows = from_ipc(await second.rows(batch))
    assert rows["trajectory_id"].to_pylist() == list(batch.trajectory_ids)
    assert rows["advantage"].to_pylist() == [[1.0]] * SIZE
    await second.put(sent(*group("g00000003")))
    following = await second.get_batch(2, 0, SIZE)
    assert not set(following.trajectory_ids) & set(batch.trajectory_ids)
    await second.close(RunStatus.FINISHED)


async def test_a_filter_holds_also_where_its_drop_was_lost(uri: str) -> None:
    first = await started(uri)  # without the filter: as if killed before it was applied
    await admit(first, "g00000000")
    await first.put(sent(trajectory("g00000000", 0), trajectory("g00000000", 1, reward=-1.0)))
    second = await started(uri, pl.col("reward") > 0)
    _, changes = await second.changes(0)
    assert changes[-1].dropped == ("g00000000-01", Reason.FILTERED)
    await second.close(RunStatus.INTERRUPTED)
    assert dropped(uri) == [("g00000000-01", Reason.FILTERED)]


async def test_a_group_that_a_filter_refuses_is_evicted_whole_and_said(uri: str) -> None:
    actor = await started(uri, varied=varied())
    await actor.put(sent(*group("g00000000"), *group("g00000002")))
    await actor.put(sent(*mixed("g00000001"), *mixed("g00000003")))
    batch = await actor.get_batch(1, 0, SIZE)
    assert set(batch.group_ids) == {"g00000001", "g00000003"}
    assert not actor._service._rows.keys() & {"g00000000-00", "g00000002-00"}
    await actor.close(RunStatus.FINISHED)
    assert dropped(uri) == [
        (f"{name}-{attempt:02d}", Reason.GROUP_FILTERED)
        for name in ("g00000000", "g00000002")
        for attempt in range(2)
    ]
    events = Run(uri).events.filter(pl.col("kind") == EventKind.EVICT).collect()
    assert {json.loads(detail)["filter"] for detail in events["detail"]} == {"varied"}
    stored = Run(uri).trajectories.filter(varied()).collect()
    assert set(stored["group_id"]) == {"g00000001", "g00000003"}, "the same filter, offline"
    assert len(ids(Run(uri).trajectories)) == 2 * SIZE, "what is evicted stays in the table"


async def test_what_a_filter_refuses_is_no_member_of_the_group_that_another_judges(
    uri: str,
) -> None:
    """After a restart too: the row of reward -1 would make the group look varied."""
    first = await started(uri)  # without the filters: as if killed before they were applied
    await admit(first, "g00000000")
    await first.put(sent(trajectory("g00000000", 0, reward=-1.0), *group("g00000000")[1:]))
    second = await started(uri, pl.col("reward") > 0, varied=varied())
    await second.put(sent(trajectory("g00000000", 2)))
    _, changes = await second.changes(0)
    assert changes[-1].evicted == ("g00000000", Reason.GROUP_FILTERED)
    await second.close(RunStatus.FINISHED)
    assert dropped(uri) == [
        ("g00000000-00", Reason.FILTERED),
        ("g00000000-01", Reason.GROUP_FILTERED),
        ("g00000000-02", Reason.GROUP_FILTERED),
    ]


async def test_a_filter_of_groups_holds_also_where_its_eviction_was_lost(uri: str) -> None:
    first = await started(uri)
    await admit(first, "g00000000", "g00000001")
    await first.put(sent(*group("g00000000"), *mixed("g00000001")))
    second = await started(uri, varied=varied())
    assert complete_groups(second._service.index) == 1
    await second.close(RunStatus.INTERRUPTED)
    assert [reason for _, reason in dropped(uri)] == [Reason.GROUP_FILTERED] * 2
    third = await started(uri, varied=varied())
    assert complete_groups(third._service.index) == 1
    await third.close(RunStatus.INTERRUPTED)
    assert len(dropped(uri)) == 2, "evicted once"


async def test_an_operator_that_runs_again_commits_nothing_twice(uri: str) -> None:
    actor = await started(uri)
    await actor.put(sent(*group("g00000000"), *group("g00000001")))
    names = ids(Run(uri).trajectories)
    rows = {"batches": to_ipc(manifest(1, names))}
    await asyncio.gather(actor.commit(rows), actor.commit(rows))
    await actor.commit(evaluation(0, 0.5))
    assert await actor.commit(evaluation(0, 0.75)) == SIZE
    again = await started(uri)
    await again.commit(rows)
    await again.commit(evaluation(0, 1.0))
    await again.commit(evaluation(3, 1.0))
    await again.close(RunStatus.FINISHED)
    run = Run(uri)
    assert run.batches.collect()["trajectory_id"].to_list() == names
    scores = run.evaluations.sort("seq").collect()
    assert scores.select("policy_version", "value").rows() == [(0, 0.5), (3, 1.0)]


async def test_a_commit_that_failed_is_refused_again_and_not_taken_for_done(uri: str) -> None:
    first = await started(uri)
    second = await started(uri)  # the first one is fenced off
    for _ in range(2):
        with pytest.raises(StoreError):
            await first.commit(evaluation(0, 0.5))
    await second.commit(evaluation(0, 0.5))
    await second.close(RunStatus.FINISHED)
    assert Run(uri).evaluations.collect().height == 1


async def test_rows_of_other_tables_are_committed_as_they_come(uri: str) -> None:
    actor = await started(uri)
    events = {"events": to_ipc(events_table([(MOMENT, Event(EventKind.RUN, "run"))]))}
    await actor.commit(events)
    await actor.commit(events)
    await actor.close(RunStatus.FAILED, "why")
    run = Run(uri)
    assert run.events.collect()["subject"].to_list() == ["run", "run"]
    assert (run.info.status, run.info.error) == (RunStatus.FAILED, "why")


async def test_memory_holds_only_what_is_pending(uri: str) -> None:
    actor = await started(uri)
    for step in range(1, 6):
        names = [f"g{2 * step + k:08d}" for k in range(2)]
        await actor.put(sent(*(t for name in names for t in group(name, start=step))))
        batch = await actor.get_batch(step, step, SIZE)
        await actor.commit({"batches": to_ipc(manifest(step, list(batch.trajectory_ids)))})
        assert isinstance(from_ipc(await actor.rows(batch)), pa.Table)
    assert not actor._service._rows.keys()
    await actor.close(RunStatus.FINISHED)


async def test_a_batch_that_was_handed_out_outlives_the_buffer_that_formed_it(uri: str) -> None:
    first = await started(uri)
    await first.put(sent(*group("g00000000"), *group("g00000001"), *group("g00000002")))
    batch = await first.get_batch(1, 0, SIZE)
    rows = await first.rows(batch)
    second = await replacing(uri)
    assert from_ipc(await second.rows(batch)).equals(from_ipc(rows))
    third = await replacing(uri)
    await third.commit({"batches": to_ipc(manifest(1, list(batch.trajectory_ids)))})
    assert third._service._rows.keys() == {"g00000002-00", "g00000002-01"}
    _, changes = await third.changes(0)
    assert {c.consumed for c in changes if c.consumed} == set(batch.group_ids)


async def test_an_event_that_is_reported_again_to_the_next_buffer_is_recorded_once(
    uri: str,
) -> None:
    first = await started(uri)
    await admit(first, "g00000000")
    assert Run(uri).events.collect()["subject"].to_list() == ["g00000000"], "it is durable"
    second = await replacing(uri)
    await admit(second, "g00000000", "g00000001")
    recorded = Run(uri).events.sort("seq").collect()
    assert recorded["subject"].to_list() == ["g00000000", "buffer", "g00000001"]


async def test_the_successor_of_the_coordinator_gets_all_that_was_reported(uri: str) -> None:
    actor = await started(uri)
    await actor.put(sent(*group("g00000000"), *group("g00000001")))
    admitting = asyncio.ensure_future(admit(actor, "g00000000", "g00000001", "g00000002"))
    await actor.received()
    batch = await actor.get_batch(1, 0, SIZE)
    recovered, cursor = await actor.succeed("coordinator")
    await admitting
    assert recovered.crashes == 1
    assert recovered.untrained == batch, "although its manifest is not written yet"
    assert recovered.control.next_cursor == 3
    assert cursor == actor._service.index.cursor


async def test_rows_of_boxes_that_are_sent_again_after_a_restart_are_stored_once(uri: str) -> None:
    def box(name: str) -> dict[str, Any]:
        record = BoxRecord(
            sandbox_id=name, variant="bubblewrap", node="n", pool="p", environment_key="k",
            domain=None, created_at=MOMENT, prewarmed=True, ended_at=MOMENT,
        )  # fmt: skip
        return record.row()

    def rows(*names: str) -> bytes:
        return to_ipc(to_table("sandboxes", [box(name) for name in names]))

    first = await started(uri)
    await first.record_sandboxes(rows("a", "b"))
    other = await replacing(uri)
    await other.record_sandboxes(rows("b", "c"))
    await other.record_sandboxes(rows("b"))
    assert sorted(Run(uri).sandboxes.collect()["sandbox_id"]) == ["a", "b", "c"]
