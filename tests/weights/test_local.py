"""The local weight store: whole versions or none, also when processes die or disks fill up."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, takewhile
from pathlib import Path
from tempfile import gettempdir

import pytest
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.weights import (
    LocalWeightStore,
    WeightStore,
    buckets,
    folders,
    following,
    open_weights,
)
from rollart_flow.weights.atomic import locked
from rollart_flow.weights.terms import FolderTerm
from tests.weights.conformance import assert_is_version, tensors_of
from tests.weights.following import BUCKET, WITHIN_S, FollowingConformance
from tests.weights.lost_driver import LostDriverConformance

ROOT = Path(__file__).parents[2]
PRELUDE = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from rollart_flow.errors import WeightsError
from rollart_flow.weights import LocalWeightStore
from tests.weights.conformance import assert_is_version, tensors_of
store = LocalWeightStore(sys.argv[1])
"""


def start(body: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Run a script in a real process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PRELUDE + body, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What the script printed; the test fails if the script did."""
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


class TestLocalWeightStore(LostDriverConformance, FollowingConformance):
    """The promises of every store."""

    @pytest.fixture(autouse=True)
    def small_buckets(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for module in (buckets, folders):
            monkeypatch.setattr(module, "BUCKET_BYTES", BUCKET)
        self.folder = tmp_path / "weights"

    def make_store(self, place: Path) -> WeightStore:
        return LocalWeightStore(place / "weights")

    def on_bucket(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[int], None]) -> None:
        numbers, flush = count(), os.fdatasync

        def flush_and_call(descriptor: int) -> None:
            flush(descriptor)
            call(next(numbers))

        monkeypatch.setattr(os, "fdatasync", flush_and_call)

    def damage(self, store: WeightStore, version: int) -> None:
        (file,) = self.folder.glob(f".leftover-v{version:06d}-*/model.safetensors")
        with file.open("r+b") as stream:
            stream.seek(BUCKET - 1)
            stream.write(b"x")


def test_a_version_is_one_folder_relative_to_the_run(tmp_path: Path) -> None:
    manifest = open_weights("local", str(tmp_path / "weights")).publish(12, tensors_of(12))
    assert manifest.uri == "weights/v000012"
    (tmp_path / "plain").write_text("")
    modes = {path.name: path.stat().st_mode for path in (tmp_path / manifest.uri).iterdir()}
    plain = (tmp_path / "plain").stat().st_mode
    assert modes == {"model.safetensors": plain, "manifest.json": plain}


def test_only_a_version_that_must_last_is_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, flush = list[str](), os.fsync

    def note(descriptor: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    store = LocalWeightStore(tmp_path / "weights")
    store.publish(1, tensors_of(1))
    assert flushed == []
    store.publish(1, tensors_of(1), lasting=True)
    assert sorted(flushed) == ["manifest.json", "model.safetensors", "v000001", "weights"]
    flushed.clear()
    store.publish(2, tensors_of(2), lasting=True)
    assert {"manifest.json", "model.safetensors", "weights"} < set(flushed)


def test_a_reader_in_the_process_of_the_publisher_looks_only_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_SHORTEST_PAUSE_S", 10 * WITHIN_S)
    monkeypatch.setattr(following, "_LONGEST_PAUSE_S", 10 * WITHIN_S)
    store, reader = (LocalWeightStore(tmp_path / "weights") for _ in range(2))
    store.publish(1, tensors_of(1))
    waiter = following.Following()
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(reader.follow, 2, waiter)
        store.publish(2, tensors_of(2))
        try:
            assert_is_version(read.result(WITHIN_S), 2)
        finally:
            waiter.end()


KILLED_PUBLISHERS = """
import shutil
from itertools import count

def dies_at_call(function):
    def call(*arguments, **keywords):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return function(*arguments, **keywords)
    return call

from rollart_flow.weights import buckets, folders
buckets.BUCKET_BYTES = folders.BUCKET_BYTES = 1000
Path.open = dies_at_call(Path.open)
os.fdatasync = dies_at_call(os.fdatasync)
os.fsync = dies_at_call(os.fsync)
os.rename = dies_at_call(os.rename)
shutil.rmtree = dies_at_call(shutil.rmtree)
for left in count(1):
    store = LocalWeightStore(Path(sys.argv[1], str(left)))
    child = os.fork()
    if child == 0:
        store.publish(2, tensors_of(2), lasting=True)
        store.retain(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status))
    if status == 0:
        break
"""


def test_a_publisher_killed_at_any_moment_leaves_whole_versions(tmp_path: Path) -> None:
    """One process for each file operation is killed (SIGKILL) before it, until one survives."""
    for moment in range(1, 30):
        LocalWeightStore(tmp_path / str(moment)).publish(1, tensors_of(1))
    codes = [int(line) for line in finish(start(KILLED_PUBLISHERS, tmp_path)).splitlines()]
    assert codes == [-9] * (len(codes) - 1) + [0]
    found = []
    for moment in range(1, len(codes) + 1):
        store = LocalWeightStore(tmp_path / str(moment))
        found.append(store.versions())
        for version in store.versions():
            assert_is_version(store.read(version), version)
        store.publish(3, tensors_of(3))
        assert store.versions() == (*found[-1], 3)
        folders = {f"v{version:06d}" for version in store.versions()}
        assert {path.name for path in Path(store.folder).iterdir()} == {".lock", *folders}
    assert sorted(set(found), key=found.index) == [(1,), (1, 2), (2,)]


FORK_TWO = """
child = os.fork()
if child:
    import atexit
    atexit.register(lambda: os.waitpid(child, 0)[1] and os._exit(1))
"""
READERS = """
seen = set()
while True:
    versions = store.versions()
    if not versions:
        continue
    try:
        read = store.read(versions[-1])
    except WeightsError:
        assert store.versions()[-1] > versions[-1]  # it was collected, so there is a newer one
        continue
    assert_is_version(read, versions[-1])
    seen.add(versions[-1])
    if versions[-1] == 60:
        break
assert seen
"""


def test_readers_never_see_two_versions_while_publishing_and_collecting(tmp_path: Path) -> None:
    readers = start(FORK_TWO + READERS, tmp_path)
    store = LocalWeightStore(tmp_path)
    for version in range(61):
        store.publish(version, tensors_of(version, size=4096))
        store.retain(1)
    finish(readers)


PUBLISHERS = """
for version in range(30):
    store.publish(version, tensors_of(version))
    store.retain(3)
"""


def test_two_publishers_of_the_same_versions_do_not_disturb_each_other(tmp_path: Path) -> None:
    finish(start(FORK_TWO + PUBLISHERS, tmp_path))
    store = LocalWeightStore(tmp_path)
    assert set(store.versions()) >= {27, 28, 29}
    for version in store.versions():
        assert_is_version(store.read(version), version)


def test_damaged_tensors_are_refused_and_can_be_published_again(tmp_path: Path) -> None:
    store = LocalWeightStore(tmp_path)
    store.publish(1, tensors_of(1))
    path = tmp_path / "v000001" / "model.safetensors"
    whole = path.read_bytes()
    for damaged in (whole[:-1] + b"\x7f", whole[: len(whole) // 2], b"", b"junk"):
        path.write_bytes(damaged)
        with pytest.raises(WeightsError, match="version 1") as caught:
            store.read(1)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(WeightsError, match="version 1"):
        store.read(1)
    store.publish(1, tensors_of(1))
    assert_is_version(store.read(1), 1)


def test_a_damaged_manifest_is_refused_in_one_line(tmp_path: Path) -> None:
    store = LocalWeightStore(tmp_path)
    store.publish(1, tensors_of(1))
    path = tmp_path / "v000001" / "manifest.json"
    whole = json.loads(path.read_text())
    for damaged in ("{", "[]", "{}", json.dumps({**whole, "more": 1}), json.dumps([whole])):
        path.write_text(damaged)
        with pytest.raises(WeightsError, match="version 1") as caught:
            store.read(1)
        assert "\n" not in str(caught.value)


REFUSED_WRITES = """
import resource, signal
store.publish(1, tensors_of(1))
store.publish(3, tensors_of(3))

def refused(call):
    try:
        call()
    except WeightsError as error:
        print(error)
    assert_is_version(store.read(1), 1)
    assert sorted(os.listdir(store.folder)) == [".lock", "v000001", "v000003"]

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
refused(lambda: store.publish(2, tensors_of(2, size=4096)))
os.chmod(store.folder, 0o555)
if os.getuid() == 0:
    os.seteuid(65534)  # the superuser may write anywhere
refused(lambda: store.publish(2, tensors_of(2)))
refused(lambda: store.retain(1))
"""


def test_a_full_disk_and_a_lack_of_permission_are_one_line_and_leave_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A limit on file sizes stands for the full disk: the system refuses the write alike."""
    place = tmp_path_factory.mktemp("read-only")
    for folder in takewhile(lambda folder: folder != Path(gettempdir()), (place, *place.parents)):
        folder.chmod(0o755)  # another user must reach it
    lines = finish(start(REFUSED_WRITES, place / "weights")).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"version 2 was not published to {place}/weights",
        f"version 2 was not published to {place}/weights",
        f"old versions in {place}/weights were not removed",
    ]
    assert "too large" in lines[0]
    assert "ermission" in lines[1]
    assert "ermission" in lines[2]


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("")
    with pytest.raises(WeightsError, match="was not published"):
        LocalWeightStore(tmp_path / "weights").publish(1, tensors_of(1))


def test_what_was_read_stays_when_the_version_is_collected(tmp_path: Path) -> None:
    store = LocalWeightStore(tmp_path)
    store.publish(1, tensors_of(1))
    read = store.read(1)
    store.publish(2, tensors_of(2))
    store.retain(1)
    assert_is_version(read, 1)


def test_foreign_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    store = LocalWeightStore(tmp_path)
    store.publish(1, tensors_of(1))
    (tmp_path / "v12").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert store.versions() == (1,)
    store.publish(2, {"a": torch.ones(1)})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_driver_that_was_stopped_while_it_published_holds_up_nobody(tmp_path: Path) -> None:
    store = LocalWeightStore(tmp_path)
    store.publish(1, tensors_of(1))
    (tmp_path / ".leftover-v000002-0").mkdir()
    (tmp_path / ".leftover-v000002.000003-000001-0").mkdir()
    with locked(tmp_path):
        store.begin_term(FolderTerm(2, 1))
        store.publish(1, tensors_of(1))
    left = [path.name for path in tmp_path.glob(".leftover-*")]
    assert left == [".leftover-v000002.000003-000001-0"], "that of a later driver"
