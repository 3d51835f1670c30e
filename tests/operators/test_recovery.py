"""Where a run stands, read from real tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow.control import recovery as control
from rollart_flow.operators import recovery
from rollart_flow.operators.recovery import recover
from rollart_flow.rows import events_table
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunInfo, RunWriter
from rollart_flow.types import Event, EventKind, Reason, Sample, Split
from tests.builders import MOMENT, batch_row, branched, group, manifest, table, trajectory
from tests.conftest import FINISHED_STEPS


def admitted(*names: str) -> list[Event]:
    detail = {"task_id": "toss", "payload": "{}"}
    return [Event(EventKind.ADMIT, name, domain="coin", detail=detail) for name in names]


def test_a_new_run_begins_at_its_beginning(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    RunWriter.create(uri, RunInfo("run", "coins", 0))
    found = recover(Run(uri))
    assert (found.start, found.version, found.checkpoint, found.untrained) == (0, 0, 0, None)
    assert (found.evaluated, found.control.next_cursor) == (frozenset(), 0)
    assert found.pending_rows is not None
    assert found.pending_rows.num_rows == 0
    assert found.without_rows().pending_rows is None


def test_what_is_pending_comes_with_its_rows_in_order(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    writer = RunWriter.create(uri, RunInfo("run", "coins", 0))
    dropped = Event(EventKind.DROP, "g00000000-01", reason=Reason.FILTERED)
    writer.commit("events", events_table((MOMENT, e) for e in admitted("g00000000", "g00000001")))
    writer.commit("trajectories", table(*group("g00000001"), *group("g00000000")))
    writer.commit("trajectories", table(trajectory("v000000/success", 0, split=Split.EVALUATION)))
    writer.commit("trajectories", table(trajectory("g00000000", 0)))  # twice, by an older version
    writer.commit("events", events_table([(MOMENT, dropped)]))
    found = recover(Run(uri))
    pending = [sample.trajectory_id for sample in found.control.pending]
    assert pending == ["g00000001-00", "g00000001-01", "g00000000-00"]
    assert found.pending_rows is not None
    assert found.pending_rows["trajectory_id"].to_pylist() == pending
    assert found.pending_rows["token_ids"].to_pylist()[1] == [1, 2, 3, 4, 1]
    assert found.control.next_cursor == 2
    records = {record.group_id: record for record in found.control.groups}
    assert records["g00000000"].dropped == frozenset({"g00000000-01"})


def test_an_episode_of_several_rows_is_pending_as_one(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    writer = RunWriter.create(uri, RunInfo("run", "coins", 0))
    writer.commit("events", events_table((MOMENT, e) for e in admitted("g00000000")))
    rows = (
        *branched(2, 1, 3, group_id="g00000000"),
        *branched(2, 2, group_id="g00000000", attempt=1),
    )
    writer.commit("trajectories", table(*rows))
    found = recover(Run(uri))
    assert [(s.trajectory_id, s.policy_version_start, s.tokens) for s in found.control.pending] == [
        ("g00000000-00", 1, 15), ("g00000000-01", 2, 10),
    ]  # fmt: skip
    assert found.pending_rows is not None
    assert found.pending_rows["trajectory_id"].to_pylist() == [row.trajectory_id for row in rows]
    assert found.committed == 5


def test_a_manifest_of_episodes_is_read_as_a_batch_of_episodes(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    writer = RunWriter.create(uri, RunInfo("run", "coins", 0))
    rows = (*branched(0, 1, group_id="g00000000"), *branched(1, 1, group_id="g00000000", attempt=1))
    writer.commit("trajectories", table(*rows))
    made = [
        batch_row(
            1, place, row.trajectory_id, row.group_id, episode_id=row.episode_id,
            staleness=age, policy_version=1,
        )
        for place, (row, age) in enumerate(zip(rows, [1, 1, 0, 0], strict=True))
    ]  # fmt: skip
    writer.commit("batches", to_table("batches", made))
    found = recover(Run(uri))
    assert found.untrained is not None
    assert found.untrained.trajectory_ids == ("g00000000-00", "g00000000-01")
    assert found.untrained.staleness == (1, 0)
    assert found.control.pending == ()
    assert Run(uri).batch(1)["trajectory_id"].to_pylist() == [row.trajectory_id for row in rows]


def test_a_manifest_without_a_step_is_trained_first(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    writer = RunWriter.create(uri, RunInfo("run", "coins", 0))
    writer.commit("trajectories", table(*group("g00000001"), *group("g00000000")))
    formed = ["g00000001-01", "g00000001-00"]
    writer.commit("batches", manifest(1, formed))
    found = recover(Run(uri))
    assert found.version == 0
    assert found.untrained is not None
    assert (found.untrained.step, found.untrained.trained_version) == (1, 0)
    assert found.untrained.trajectory_ids == tuple(formed), "in the order of the manifest"
    pending = [sample.group_id for sample in found.control.pending]
    assert pending == ["g00000000"] * 2


def test_a_finished_run_stands_at_its_last_step(finished_run: Run) -> None:
    found = recover(finished_run)
    assert (found.version, found.untrained) == (FINISHED_STEPS, None)
    assert found.checkpoint == FINISHED_STEPS
    assert found.evaluated == frozenset(range(FINISHED_STEPS + 1))
    trained = set(finished_run.batches.collect()["trajectory_id"])
    assert not trained & {sample.trajectory_id for sample in found.control.pending}


def lived(writer: RunWriter, groups: int, random: Random) -> None:
    """Commit groups of two of every fate, each over several commits of other groups."""
    queues: list[list[tuple[str, pa.Table]]] = []
    for cursor in range(groups):
        name = f"g{cursor:08d}"
        first, second = group(name)
        detail = {"group_id": name}
        evict = [Event(EventKind.EVICT, each.trajectory_id, detail=detail) for each in group(name)]
        abandon = Event(EventKind.ABANDON, name, reason=Reason.GROUP_ABANDONED)
        drop = Event(EventKind.DROP, second.trajectory_id, reason=Reason.FILTERED, detail=detail)
        admit = ("events", events_table((MOMENT, event) for event in admitted(name)))
        whole = ("trajectories", table(first, second))
        step = ("batches", manifest(cursor + 1, [each.trajectory_id for each in group(name)]))
        fates = {
            "trained": [admit, whole, step],
            "evicted": [admit, whole, ("events", events_table((MOMENT, e) for e in evict))],
            "abandoned": [admit, ("events", events_table([(MOMENT, abandon)]))],
            "dropped": [admit, whole, ("events", events_table([(MOMENT, drop)]))],
            "waiting": [admit, whole],
            "half": [admit, ("trajectories", table(first))],
            "in flight": [admit],
            "no admission": [whole],
        }
        likely = ["trained"] * 12 + list(fates)
        queues.append(fates[random.choice(likely)])
    oldest = 0
    while any(queues):
        oldest += not queues[oldest]
        due = next(queue for queue in queues[oldest + random.randrange(4) :] + queues if queue)
        writer.commit(*due.pop(0))


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_is_recovered_as_if_all_its_rows_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    uri = str(tmp_path / "run")
    lived(RunWriter.create(uri, RunInfo("run", "coins", 0)), 60, Random(seed))
    everything = recover(Run(uri))
    monkeypatch.setattr(recovery, "_RECENT", 12)
    monkeypatch.setattr(recovery, "_PART", 25)
    read: list[int] = []
    real = control.recover

    def counting(events: Iterable[Event], samples: Sequence[Sample], *others: Any) -> Any:
        read.append(len(samples))
        return real(events, samples, *others)

    whole, collect = list[int](), recovery._collect

    def collecting(rows: pl.LazyFrame) -> pl.DataFrame:
        collected = collect(rows)
        if "token_ids" in collected.columns:
            whole.append(collected.height)
        return collected

    monkeypatch.setattr(control, "recover", counting)
    monkeypatch.setattr(recovery, "_collect", collecting)
    found = recover(Run(uri))
    state, expected = found.control, everything.control
    assert state.groups == expected.groups
    assert state.next_cursor == expected.next_cursor == 60
    assert found.pending_rows is not None
    assert everything.pending_rows is not None
    live = {record.group_id for record in expected.groups}
    assert [s for s in state.pending if s.group_id in live] == [
        s for s in expected.pending if s.group_id in live
    ]
    assert found.pending_rows["trajectory_id"].to_pylist() == [
        sample.trajectory_id for sample in state.pending
    ]
    assert set(state.known) <= set(expected.known)
    assert state.closed.items() <= expected.closed.items()
    assert len(state.closed) >= 12
    assert found.committed == len(expected.pending) + len(expected.known)
    assert read[0] < found.committed / 2
    assert sum(whole) == found.pending_rows.num_rows, "only pending rows are read with their tokens"
