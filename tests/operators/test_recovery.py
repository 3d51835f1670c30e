"""Where a run stands, read from real tables."""

from pathlib import Path

from rollart_flow.operators.recovery import recover
from rollart_flow.rows import events_table
from rollart_flow.store import Run, RunInfo, RunWriter
from rollart_flow.types import Event, EventKind, Reason, Split
from tests.builders import MOMENT, group, manifest, table, trajectory
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
