"""Reading a run: live, whole, and as of any earlier moment."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow.errors import RunNotFoundError, StoreError
from rollart_flow.rows import trajectory_from_row
from rollart_flow.schema import TABLES, stored_schema
from rollart_flow.store import Run, list_runs, open_run
from tests.builders import batches, events, numbered, step_row, trajectories
from tests.runs import ids, new_writer, seqs, small_run
from tests.store.failing import failing_append


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two steps: t0-t3 in the first, t4-t7 of version 1 in the second, t8 not trained on."""
    with new_writer(tmp_path) as writer:
        writer.commit("trajectories", trajectories(range(4)))
        writer.commit("batches", batches(1, [2, 0, 3, 1]))
        writer.commit_many({"steps": step_row(1), "events": events("x")})
        writer.commit("trajectories", trajectories(range(4, 9), version=1, tokens=10))
        writer.commit("batches", batches(3, [7, 4, 6, 5], version=1))
        writer.commit("steps", step_row(2))
    return open_run(writer.uri)


def test_an_empty_run_has_all_tables_in_the_declared_types(tmp_path: Path) -> None:
    run = open_run(new_writer(tmp_path).uri)
    for table, frame in run.snapshot().frames().items():
        found = frame.collect()
        assert found.is_empty()
        assert found.columns == stored_schema(table).names
    assert set(run.snapshot().frames()) == set(TABLES)


def test_a_store_and_a_run_may_have_any_other_letters(tmp_path: Path) -> None:
    store = tmp_path / "a b#c?d%e{f}ü" / "[*]"
    run = small_run(store, name="ein Lauf #1?")
    assert run.trajectories.collect().height == 44
    assert run.batch(2).num_rows == 8
    assert run.sql("SELECT count(*) AS n FROM steps").item() == 4
    assert [uri for uri, _ in list_runs(store)] == [run.uri]


def test_every_table_is_a_property(run: Run) -> None:
    heights = {table: getattr(run, table).collect().height for table in TABLES}
    assert heights == {
        "trajectories": 9,
        "batches": 8,
        "steps": 2,
        "weights": 0,
        "events": 1,
        "bindings": 0,
        "evaluations": 0,
        "sandboxes": 0,
        "verdicts": 0,
        "admissions": 0,
        "exchanges": 0,
    }
    for table, frame in run.snapshot().frames().items():
        assert getattr(run.snapshot(), table).collect().equals(frame.collect())


def test_a_trajectory_survives_storage_to_the_last_bit(run: Run) -> None:
    row = run.trajectories.filter(pl.col("trajectory_id") == "t6").collect().row(0, named=True)
    assert trajectory_from_row(row) == numbered(6, version=1, tokens=10)


def test_as_of_a_step(run: Run) -> None:
    moment = run.as_of(step=1)
    assert ids(moment.trajectories) == ["t0", "t1", "t2", "t3"]
    assert moment.steps.collect()["step"].to_list() == [1]
    assert seqs(moment.batches) == [5, 6, 7, 8]
    assert moment.batch(1).equals(run.batch(1))
    with pytest.raises(StoreError, match="no batch of step 3"):
        moment.batch(3)
    with pytest.raises(StoreError, match=r"no step 2 in the run at .*; its last is 1"):
        moment.as_of(step=2)


def test_as_of_a_seq_and_a_time(run: Run) -> None:
    assert ids(run.as_of(seq=2).trajectories) == ["t0", "t1"]
    assert run.as_of(seq=10**9).trajectories.collect().height == 9
    first = run.trajectories.select(pl.col("committed_at").min()).collect().item()
    assert ids(run.as_of(time=first).trajectories) == ["t0", "t1", "t2", "t3"]
    assert run.as_of(time=first - timedelta(seconds=1)).trajectories.collect().is_empty()
    assert run.as_of(time=datetime.now(UTC)).trajectories.collect().height == 9
    assert ids(run.as_of(seq=2).as_of(time=datetime.now(UTC)).trajectories) == ["t0", "t1"]


def test_a_moment_that_is_none(run: Run, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no step 9 in the run at .*; its last is 2"):
        run.as_of(step=9)
    with pytest.raises(StoreError, match="exactly one of step, seq and time"):
        run.as_of(step=1, seq=2)
    with pytest.raises(StoreError, match="exactly one of step, seq and time"):
        run.as_of()
    with pytest.raises(StoreError, match="has no time zone"):
        run.as_of(time=datetime(2025, 1, 1))
    with pytest.raises(StoreError, match="it has no steps yet"):
        open_run(new_writer(tmp_path, "empty").uri).as_of(step=1)


def test_a_batch_is_what_was_trained_on_in_its_order(run: Run) -> None:
    batch = run.batch(3)
    assert batch["trajectory_id"].to_pylist() == ["t7", "t4", "t6", "t5"]
    assert batch["position"].to_pylist() == [0, 1, 2, 3]
    assert batch["advantage"].to_pylist() == [[7 / 8], [4 / 8], [6 / 8], [5 / 8]]
    assert batch.schema.field("token_ids").type == pa.list_(
        pa.field("element", pa.int32(), nullable=False)
    )
    back = [trajectory_from_row(row) for row in batch.to_pylist()]
    assert back == [numbered(n, version=1, tokens=10) for n in (7, 4, 6, 5)]
    declared = {*stored_schema("trajectories").names, *stored_schema("batches").names}
    assert set(batch.schema.names) == declared


def test_a_batch_with_a_missing_trajectory_is_an_error(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.commit("trajectories", trajectories(range(2)))
    writer.commit("batches", batches(1, [0, 5]))
    with pytest.raises(StoreError, match="step 1: trajectory 't5' of its batch is not in"):
        open_run(writer.uri).batch(1)


def test_a_run_that_is_written_is_read_as_it_grows(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    run = open_run(writer.uri)
    writer.commit("trajectories", trajectories(range(2)))
    held, snapshot = run.trajectories, run.snapshot()
    writer.commit("trajectories", trajectories(range(2, 4)))
    assert ids(run.trajectories) == ["t0", "t1", "t2", "t3"]
    assert ids(held) == ids(snapshot.trajectories) == ["t0", "t1"]


def test_a_snapshot_shows_a_group_in_all_tables_or_in_none(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    run = open_run(writer.uri)
    with failing_append("steps"), pytest.raises(StoreError):
        writer.commit_many({"trajectories": trajectories(range(2)), "steps": step_row(1)})
    assert run.snapshot().seq == 0
    assert run.trajectories.collect().is_empty()


def test_sql_over_all_tables(run: Run) -> None:
    bound = run.sql(
        "SELECT max(b.policy_version - t.policy_version_start) AS staleness, count(*) AS n"
        " FROM batches b JOIN trajectories t ON b.trajectory_id = t.trajectory_id"
    )
    assert bound.to_dicts() == [{"staleness": 0, "n": 8}]
    means = run.sql("SELECT domain, avg(reward) AS r FROM trajectories GROUP BY domain ORDER BY r")
    assert means.to_dicts() == [
        {"domain": "frozenlake", "r": 0.0},
        {"domain": "arithmetic", "r": 1.0},
    ]
    assert run.as_of(step=1).sql("SELECT * FROM trajectories").height == 4


@pytest.mark.parametrize(
    "query", ["SELEC 1", "SELECT nothing FROM steps", "SELECT * FROM rollouts", ""]
)
def test_wrong_sql_is_one_line(run: Run, query: str) -> None:
    with pytest.raises(StoreError, match=r"^query: .+") as caught:
        run.sql(query)
    assert "\n" not in str(caught.value)


def test_what_a_run_says_of_itself(run: Run) -> None:
    assert run.path == run.uri
    assert run.info.name == "a"
    assert repr(run.as_of(seq=3)) == f"Run({run.uri!r}, seq=3)"
    with pytest.raises(RunNotFoundError):
        open_run(run.uri + "b")
