"""The activity of a run's stages, from its tables while they grow."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from rollart_flow.analysis.activity import ActivityReader
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.store import Run, RunInfo, RunStatus, RunWriter, open_run
from rollart_flow.telemetry import Progress, ProgressKind
from rollart_flow.types import Event, EventKind, Outcome, Reason
from tests.builders import manifest as manifest_of
from tests.builders import step_row, trajectory
from tests.runs import small_run

NODES = {
    "tasks": {"kind": "tasks", "group_size": 2},
    "rollout": {"kind": "rollout", "redundancy": 1},
    "train": {"kind": "train", "steps": 9},
}


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    return RunWriter.create(str(tmp_path / "a"), RunInfo("a", "test", 0, {"nodes": NODES}))


def reader_of(tmp_path: Path) -> ActivityReader:
    return ActivityReader(open_run(str(tmp_path / "a")))


def events(*found: Event) -> pa.Table:
    return events_table([(datetime.now(UTC), event) for event in found])


def admitted(*groups: str) -> pa.Table:
    detail = {"cursor": 0, "task_id": "t", "payload": "{}"}
    return events(*(Event(EventKind.ADMIT, group, detail=detail) for group in groups))


def test_attempts_are_in_flight_from_admission_to_their_rows(
    writer: RunWriter, tmp_path: Path
) -> None:
    reader = reader_of(tmp_path)
    writer.commit("events", admitted("g", "h"))
    reader.read()
    assert reader.activity().in_flight == 6  # two groups of two, and one redundant attempt each
    writer.commit("trajectories", trajectories_table([trajectory("g", 0)]))
    failed = trajectory("h", 0, outcome=Outcome.FAILED, reward=None)
    writer.commit("trajectories", trajectories_table([failed]))
    replaced = Event(EventKind.RETRY, "h-03", detail={"replaces": "h-00"})
    writer.commit("events", events(replaced))
    reader.read()
    now = reader.activity()
    assert (now.in_flight, now.pending, now.committed) == (2 + 3, 1, 2)


def test_a_complete_group_waits_until_a_batch_takes_it(writer: RunWriter, tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    writer.commit("events", admitted("g"))
    members = [trajectory("g", 0, reward=0.0), trajectory("g", 1, reward=1.0)]
    writer.commit("trajectories", trajectories_table(members))
    reader.read()
    now = reader.activity()
    assert (now.in_flight, now.pending) == (0, 2)
    assert now.trainer == "waiting for the batch of step 1"
    writer.commit("batches", manifest_of(1, ["g-00", "g-01"]))
    reader.read()
    now = reader.activity()
    assert (now.pending, now.trainer) == (0, "training step 1")
    writer.commit("steps", step_row(1))
    (step,) = reader.read()
    assert (step.kind, step.total_steps, step.rewards) == (ProgressKind.STEP, 9, {"coin": 0.5})
    assert reader.activity().trainer == "waiting for the batch of step 2"


def test_evicted_and_abandoned_groups_leave(writer: RunWriter, tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    writer.commit("events", admitted("g", "h"))
    writer.commit("trajectories", trajectories_table([trajectory("g", 0), trajectory("g", 1)]))
    reader.read()
    gone = (
        Event(EventKind.EVICT, f"g-0{n}", Reason.STALENESS_BOUND, detail={"group_id": "g"})
        for n in range(2)
    )
    abandoned = Event(EventKind.ABANDON, "h", Reason.GROUP_ABANDONED)
    writer.commit("events", events(*gone, abandoned))
    reader.read()
    assert (reader.activity().in_flight, reader.activity().pending) == (0, 0)
    assert not reader._groups


def test_rates_are_those_of_the_last_seconds(writer: RunWriter, tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    writer.commit("trajectories", trajectories_table([trajectory("g", n) for n in range(20)]))
    reader.read()
    later = datetime.now(UTC) + timedelta(seconds=10)
    now = reader.activity(later)
    assert now.turns_per_s == pytest.approx(2.0, rel=0.2)
    assert now.tokens_per_s == pytest.approx(4.0, rel=0.2)
    much_later = reader.activity(later + timedelta(minutes=1))
    assert (much_later.turns_per_s, much_later.tokens_per_s) == (0.0, 0.0)


def test_engines_and_crashes_are_those_of_the_events(writer: RunWriter, tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    suspended = Event(EventKind.SUSPEND, "3", policy_version=2, step=4)
    crash = Event(EventKind.CRASH, "engine-0", Reason.WORKER_LOST, detail={"error": "killed"})
    writer.commit("events", events(suspended, crash))
    (note,) = reader.read()
    assert note.text == "engine-0 died: killed"
    assert (reader.activity().engine_state, reader.activity().served_version) == ("suspended", 2)


def test_a_run_read_at_once_gives_what_it_gives_while_it_grows(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    at_once = ActivityReader(run)
    said = [(each.kind, each.row.get("step"), len(each.rows)) for each in at_once.read()]
    steps = [step for kind, step, _ in said if kind is ProgressKind.STEP]
    assert steps == [1, 2, 3, 4]
    assert said[0] == (ProgressKind.EVALUATION, None, said[0][2])
    grown = [each for part in _read_in_parts(run) for each in part]
    assert [(each.kind, each.row.get("step"), len(each.rows)) for each in grown] == said
    now = at_once.activity()
    assert (now.status, now.trainer, now.in_flight) == (RunStatus.FINISHED, "ended", 0)
    assert at_once.read() == []


def _read_in_parts(run: Run) -> Iterator[list[Progress]]:
    reader = ActivityReader(run)
    seqs = run.steps.select("seq").collect()["seq"].sort()
    for seq in [*seqs, None]:
        with _as_of(reader, run, seq):
            yield reader.read()


@contextmanager
def _as_of(reader: ActivityReader, run: Run, seq: int | None) -> Iterator[None]:
    reader.run = run if seq is None else run.as_of(seq=seq)
    yield
    reader.run = run
