"""A full disk, a forbidden folder, damaged or foreign tables: one clear line, and nothing is lost.

What a process cannot undo (limits, identity) happens in a process of its own.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from rollart_flow.errors import SchemaError, StoreError
from rollart_flow.schema import SCHEMA_VERSION, stored_schema
from rollart_flow.store import RunWriter, open_run
from tests.builders import batches, step_row, trajectories
from tests.runs import ids, new_writer

_FILLED = """
import sys
from rollart_flow.errors import StoreError
from rollart_flow.store import RunWriter
from tests.builders import events, trajectories
writer = RunWriter.open(sys.argv[1])
number = 1
try:
    while True:
        group = {"trajectories": trajectories(range(number, number + 1), tokens=20000),
                 "events": events("x")}
        writer.commit_many(group, transaction=number)
        print(number)
        number += 1
        assert number < 200
except StoreError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
"""


def commit_until_full(uri: str, limit_bytes: int | None = None) -> tuple[list[str], str]:
    """(acknowledged ids, error line) of a process that commits until storage fails."""

    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    done = subprocess.run(
        [sys.executable, "-c", _FILLED, uri],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=limit,
    )
    return [f"t{number}" for number in done.stdout.split()], done.stderr.rstrip("\n")


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    uri = new_writer(tmp_path).uri
    acknowledged, line = commit_until_full(uri, limit_bytes=6_000)
    assert acknowledged == []
    assert line.startswith("StoreError: trajectories: cannot write ")
    assert line.endswith(": File too large")
    table = Path(uri) / "tables" / "trajectories"
    assert [path.name for path in table.iterdir()] == ["_delta_log"]
    assert RunWriter.open(uri).commit("trajectories", trajectories(range(1))) == (1, 1)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 1 MiB; skips where this process may not mount one."""
    folder = Path(tempfile.mkdtemp(prefix="small-disk-"))
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], check=False, capture_output=True)
    try:
        if mounted.returncode:
            pytest.skip("no right to mount a file system")
        yield folder
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: Path) -> None:
    uri = new_writer(small_disk).uri
    acknowledged, line = commit_until_full(uri)
    assert len(acknowledged) > 3
    assert line.startswith("StoreError: ")
    assert "No space left on device" in line
    assert "\n" not in line
    run = open_run(uri)
    assert ids(run.trajectories) == acknowledged
    assert run.events.collect().height == len(acknowledged)

    (small_disk / "more").mkdir()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    writer = RunWriter.open(uri)
    number = len(acknowledged) + 1
    writer.commit("trajectories", trajectories(range(number, number + 1)), transaction=number)
    assert ids(open_run(uri).trajectories) == [*acknowledged, f"t{number}"]


_AS_NOBODY = """
import os, sys
from rollart_flow.errors import StoreError
from rollart_flow.store import RunInfo, RunWriter, open_run
info = RunInfo("b", "p", 0)
calls = {
    "open": lambda: RunWriter.open(sys.argv[1]),
    "create": lambda: RunWriter.create(sys.argv[2], info),
    "read": lambda: print(open_run(sys.argv[1]).trajectories.collect().height),
}
open_run(sys.argv[1]).trajectories.collect()  # everything is imported while it may be read
os.setgid(65534)
os.setuid(65534)
for name in sys.argv[3:]:
    try:
        calls[name]()
    except StoreError as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may read, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="open-folder-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without permission")
def test_a_folder_without_permission(open_folder: Path) -> None:
    with new_writer(open_folder) as writer:
        writer.commit("trajectories", trajectories(range(3)))

    def as_nobody(*calls: str) -> list[str]:
        command = [sys.executable, "-c", _AS_NOBODY, writer.uri, str(open_folder / "b"), *calls]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.splitlines()

    read, opened, created = as_nobody("read", "open", "create")
    assert read == "3"
    assert opened.startswith("StoreError: trajectories: cannot write ")
    assert "ermission denied" in opened
    assert created == f"StoreError: cannot write {open_folder}/b/run.json: Permission denied"

    (open_folder / "a").chmod(0o700)
    assert as_nobody("read") == [
        f"StoreError: cannot read {open_folder}/a/run.json: Permission denied"
    ]


def last_log_entry(uri: str, table: str) -> Path:
    """The newest entry of a table's Delta log."""
    return max((Path(uri) / "tables" / table / "_delta_log").glob("*.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{ torn", "the newest entry of its log, .* is torn; put a copy of it there, or remove it"),
        ('{"add": {"path": 3}}\n', "cannot read the Delta log"),
    ],
)
def test_a_damaged_delta_log(tmp_path: Path, content: str, said: str) -> None:
    writer = new_writer(tmp_path)
    writer.commit("trajectories", trajectories(range(2)))
    writer.commit("trajectories", trajectories(range(2, 4)))
    entry = last_log_entry(writer.uri, "trajectories")
    good = entry.read_text()
    entry.write_text(content)
    for use in (lambda: open_run(writer.uri).trajectories, lambda: RunWriter.open(writer.uri)):
        with pytest.raises(StoreError, match=f"^trajectories: {said}") as caught:
            use()
        assert "\n" not in str(caught.value)
    entry.write_text(good)
    assert ids(open_run(writer.uri).trajectories) == ["t0", "t1", "t2", "t3"]


def test_a_log_with_a_gap(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    for number in range(3):
        writer.commit("trajectories", trajectories(range(number, number + 1)))
    middle = sorted(last_log_entry(writer.uri, "trajectories").parent.glob("*.json"))[2]
    content = middle.read_text()
    middle.unlink()
    with pytest.raises(StoreError, match="trajectories: cannot read the Delta log"):
        open_run(writer.uri).snapshot()
    middle.write_text(content)
    assert len(ids(open_run(writer.uri).trajectories)) == 3


def test_a_missing_table(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    shutil.rmtree(Path(writer.uri) / "tables" / "steps")
    with pytest.raises(StoreError, match=r"^steps: cannot read the Delta log of .* does not exist"):
        open_run(writer.uri).snapshot()
    assert RunWriter.open(writer.uri).commit("steps", step_row(1)) == (1, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["position"]), r"batches\.position: missing in the foreign"),
        (
            lambda t: t.set_column(2, "step", t["step"].cast(pa.int64())),
            r"batches\.step: type int64 in the foreign table at .*, int32 expected",
        ),
        (
            lambda t: t.append_column("mood", t["group_id"]),
            r"batches\.mood: unexpected in the foreign table",
        ),
    ],
)
def test_a_foreign_table(tmp_path: Path, change: object, message: str) -> None:
    writer = new_writer(tmp_path)
    writer.commit("batches", batches(1, [0, 1]))
    assert callable(change)
    foreign = change(
        open_run(writer.uri).batches.collect().to_arrow().cast(stored_schema("batches"))
    )
    place = Path(writer.uri) / "tables" / "batches"
    shutil.rmtree(place)
    write_deltalake(place, foreign)
    for use in (lambda: open_run(writer.uri).snapshot(), lambda: RunWriter.open(writer.uri)):
        with pytest.raises(SchemaError, match=message):
            use()


def test_a_run_of_a_newer_schema_version(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    place = Path(writer.uri) / "run.json"
    place.write_text(
        json.dumps(json.loads(place.read_text()) | {"schema_version": SCHEMA_VERSION + 1})
    )
    for use in (lambda: open_run(writer.uri), lambda: RunWriter.open(writer.uri)):
        with pytest.raises(StoreError, match=f"has schema version {SCHEMA_VERSION + 1}"):
            use()


def test_a_failed_creation_leaves_the_name_free(tmp_path: Path) -> None:
    blocked = tmp_path / "a" / "tables"
    blocked.parent.mkdir()
    blocked.write_text("not a folder")
    with pytest.raises(StoreError, match="trajectories: cannot write"):
        new_writer(tmp_path)
    blocked.unlink()
    assert new_writer(tmp_path).commit("steps", step_row(1)) == (1, 1)
