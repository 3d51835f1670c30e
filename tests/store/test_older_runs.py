"""A run of an older schema version: read as it is, and gone on with."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from pyarrow import feather

from rollart_flow import schema
from rollart_flow.schema import ADDED_TABLES, SCHEMA_VERSION, TABLES, stored_schema, to_table
from rollart_flow.store import RunWriter, open_run
from tests.builders import batches, events, step_row, trajectories
from tests.runs import BEGAN, ids
from tests.store.power import watched_disk

ROOT = Path(__file__).parents[2]
NEW_TABLES = {7: ("sandboxes", "verdicts", "admissions"), 8: ("exchanges",)}
"""Tables that came with a version."""
OF_12 = {"batches": ["source_rescored"]}
OF_11 = {"steps": ["train_cpu_s"]}
OF_10 = {
    "batches": [
        "start_loss", "implicit_reward", "source_run", "source_seq", "source_version",
        "preferred", "pair",
    ],
    "exchanges": ["first_token_at"],
}  # fmt: skip
OF_9 = {"trajectories": ["delivered_fraction"]}
OF_7 = {"trajectories": ["diff", "verifier", "suspicions"]}
OF_6 = {
    "trajectories": [
        "messages", "tools", "tool_calls", "tool_errors", "rewritten_at", "branch", "parent",
        "shared_tokens", "images",
    ],
    "batches": ["episode_id"],
    "weights": ["base_version"],
}  # fmt: skip
OF_5 = {"batches": ["lag"], "steps": ["lag_max", "lag_mean", "skipped"]}
OF_4 = {"steps": ["push_s"]}
OF_3 = {"steps": ["pull_s", "exposed_pull_s"], "trajectories": ["prefill_workers"]}
OF_2 = {
    "batches": ["targets"],
    "steps": ["value_loss", "mismatch_kl", "mismatch_ratio_max", "ess", "lags"],
}
"""Columns that came with a version."""
_NEW = (
    (2, OF_2), (3, OF_3), (4, OF_4), (5, OF_5), (6, OF_6), (7, OF_7), (9, OF_9), (10, OF_10),
    (11, OF_11), (12, OF_12),
)  # fmt: skip
ADDED = {
    version: {
        table: [name for since, of in _NEW if since > version for name in of.get(table, [])]
        for table in TABLES
    }
    for version in range(1, SCHEMA_VERSION)
}
"""Columns that a version did not have."""

OLDER_WRITER = """
import sys
from pathlib import Path
from rollart_flow import schema
schema._schemas_folder = lambda: Path(sys.argv[1])
from rollart_flow.store import writer as store_writer
store_writer.TABLES = [table for table in schema.TABLES if table not in sys.argv[3:]]
from pyarrow import feather
from tests.builders import batches, events, step_row
from tests.runs import new_writer
writer = new_writer(Path(sys.argv[2]))
writer.commit("trajectories", feather.read_table(Path(sys.argv[1]) / "trajectories"))
writer.commit("batches", batches(1, [0, 1]))
writer.commit_many({"steps": step_row(1), "events": events("one")})
writer.close()
print(writer.uri)
"""


def missing(version: int) -> list[str]:
    """Tables that a version does not have."""
    return [name for since, names in NEW_TABLES.items() if since > version for name in names]


@pytest.fixture(params=sorted(ADDED))
def version(request: pytest.FixtureRequest) -> int:
    """An older version."""
    return int(request.param)


Written = Callable[[int], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Returns the run of a version, which is written once; copy it to change it."""
    return cache(lambda version: write(version, tmp_path_factory.mktemp(f"v{version}")))


@pytest.fixture
def older(version: int, written: Written, tmp_path: Path) -> str:
    """Address of a run that a process with the schemas of this version wrote."""
    original = written(version)
    return str(shutil.copytree(original, tmp_path / original.name))


def write(version: int, tmp_path: Path) -> Path:
    """Have a process with the schemas of a version write a run; its folder."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    for path in (Path(schema.__file__).parent.parent / "schemas").glob("*.json"):
        declared = json.loads(path.read_text())
        added = ADDED[version].get(path.stem, [])
        kept = [field for field in declared["fields"] if field["name"] not in added]
        (folder / path.name).write_text(json.dumps({**declared, "fields": kept}))
    rows = trajectories(range(2)).drop_columns(ADDED[version].get("trajectories", []))
    feather.write_feather(rows, folder / "trajectories")
    done = subprocess.run(
        [sys.executable, "-c", OLDER_WRITER, str(folder), str(tmp_path), *missing(version)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    uri = Path(done.stdout.strip())
    info = json.loads((uri / "run.json").read_text())
    (uri / "run.json").write_text(json.dumps({**info, "schema_version": version}))
    return uri


def test_it_is_read_with_nulls_in_what_came_later(older: str, version: int) -> None:
    run = open_run(older)
    for table, added in ADDED[version].items():
        frame = run.snapshot().table(table)
        assert frame.collect_schema().names() == stored_schema(table).names
        assert frame.select(added).collect().null_count().row(0) == (frame.collect().height,) * len(
            added
        )
    assert run.batch(1)["targets"].null_count == 2
    assert (
        run.batch(1).schema.field("targets").type == stored_schema("batches").field("targets").type
    )
    assert run.sql("SELECT step, ess FROM steps").rows() == [(1, None)]
    assert run.info.schema_version == version


def test_it_lacks_the_tables_that_came_later(older: str, version: int) -> None:
    there = {path.name for path in (Path(older) / "tables").iterdir()}
    assert there == {*TABLES} - {*missing(version)}
    assert open_run(older).exchanges.collect().is_empty()
    assert {*ADDED_TABLES} == {name for names in NEW_TABLES.values() for name in names}


@pytest.mark.parametrize("version", [6], indirect=True)
def test_tables_that_came_later_are_empty_until_it_is_gone_on_with(older: str) -> None:
    before = open_run(older)
    assert before.sandboxes.collect().height == before.sql("SELECT * FROM verdicts").height == 0
    assert before.batch(1).num_rows == 2
    writer = RunWriter.open(older)
    row = {"task_id": "a", "domain": "d", "flaky": False, "seconds": 1.0, "admitted": True}
    row |= {f"{what}_digest": "" for what in ("task", "image", "verifier")} | {"checked_at": BEGAN}
    writer.commit("admissions", to_table("admissions", [row]))
    assert before.admissions.select("task_id").collect().item() == "a"
    writer.close()


def test_it_is_gone_on_with_and_then_of_this_version(older: str) -> None:
    before = open_run(older)
    writer = RunWriter.open(older)
    writer.commit("trajectories", trajectories(range(2, 4)))
    writer.commit("batches", batches(2, [2, 3]))
    writer.commit_many({"steps": step_row(2), "events": events("two")})
    writer.close()
    run = open_run(older)
    assert run.info.schema_version == SCHEMA_VERSION
    assert ids(run.trajectories) == ["t0", "t1", "t2", "t3"]
    assert run.steps.sort("step").select("step", "ess").collect().rows() == [(1, None), (2, None)]
    assert ids(before.trajectories) == ["t0", "t1", "t2", "t3"], "a reader from before goes on"
    assert before.steps.collect().height == 2


def test_old_and_new_files_are_merged(older: str) -> None:
    with RunWriter.open(older) as writer:
        for step in range(2, 12):
            writer.commit("steps", step_row(step))
        assert writer.maintain()["steps"].merged >= 10
    steps = open_run(older).steps.sort("step").collect()
    assert steps["step"].to_list() == list(range(1, 12))
    assert steps.filter(pl.col("lags").is_not_null()).is_empty()


@pytest.mark.parametrize("version", [1], indirect=True)
def test_its_new_columns_outlive_a_power_failure(older: str) -> None:
    folder = Path(older)
    with watched_disk() as disk:
        disk.settle(folder)
        writer = RunWriter.open(older)
        writer.commit("steps", step_row(2, {"ess": 0.5}))
        disk.cut_power(folder)
    steps = open_run(older).steps.sort("step").select("step", "ess").collect()
    assert steps.rows() == [(1, None), (2, 0.5)]
