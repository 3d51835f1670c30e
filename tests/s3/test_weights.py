"""Weights and whole folders in S3: all of one version or none, whoever writes meanwhile."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_flow.errors import StoreError, WeightsError
from rollart_flow.store.s3.blobs import S3Blobs
from rollart_flow.weights import LocalWeightStore, WeightStore, s3_folder_store
from rollart_flow.weights.folder_store import folder_store_at, local_path, opened
from rollart_flow.weights.folders import Files
from tests.weights.conformance import assert_is_version, tensors_of
from tests.weights.following import BUCKET, FollowingConformance
from tests.weights.lost_driver import LostDriverConformance


def holding(**texts: str) -> Files:
    """Files of these names."""
    return [(name, [memoryview(text.encode())]) for name, text in texts.items()]


class TestWeightsInS3(LostDriverConformance, FollowingConformance):
    """The promises of every store."""

    @pytest.fixture(autouse=True)
    def small_buckets(self, remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.remote = remote
        monkeypatch.setattr(s3_folder_store, "BUCKET_BYTES", BUCKET)
        monkeypatch.setattr(s3_folder_store, "_AT_ONCE", 1)

    def make_store(self, place: Path) -> WeightStore:
        return LocalWeightStore(f"{self.remote}/weights")

    def on_bucket(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[int], None]) -> None:
        write = S3Blobs.write

        def write_and_call(blobs: S3Blobs, name: str, data: memoryview) -> bool:
            written = write(blobs, name, data)
            if "/model.safetensors/" in name:
                call(int(name.rpartition("/")[2]))
            return written

        monkeypatch.setattr(S3Blobs, "write", write_and_call)

    def damage(self, store: WeightStore, version: int) -> None:
        blobs = S3Blobs(f"{self.remote}/weights")
        (name,) = (n for n in blobs.names() if n.endswith("/model.safetensors/00000"))
        blobs.write_new(name, memoryview(b"x" * BUCKET))


def test_of_two_who_publish_a_version_at_once_the_first_one_wins(remote: str) -> None:
    everyone, said = threading.Barrier(4), list[str]()

    def publish(value: int) -> None:
        store = LocalWeightStore(f"{remote}/weights")
        everyone.wait()
        try:
            store.publish(1, tensors_of(value))
            said.append("published")
        except WeightsError as error:
            said.append(str(error))

    threads = [threading.Thread(target=publish, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [text for text in said if text != "published"]
    assert len(refused) == 2
    assert all(
        "was published with other tensors; a version is never replaced" in r for r in refused
    )
    read = LocalWeightStore(f"{remote}/weights").read(1)
    assert_is_version(read, int(read["model.scale"]))
    files = [name for name in S3Blobs(f"{remote}/weights").names() if "model.safetensors" in name]
    assert len(files) == 1, "what came too late is removed"


def test_a_reader_gets_a_folder_or_none_while_it_is_replaced(remote: str) -> None:
    place = folder_store_at(f"{remote}/checkpoints")
    assert place.put("000001", holding(a="old", b="old"))
    with opened(f"{remote}/checkpoints/000001") as folder:
        assert place.put("000001", holding(a="new", c="new"))
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    with opened(f"{remote}/checkpoints/000001") as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["a", "c"]
    assert not folder.exists()
    place.remove("000001")
    assert place.names() == []
    assert S3Blobs(f"{remote}/checkpoints").names() == []


def test_an_upload_that_was_cut_off_is_no_folder(remote: str) -> None:
    place = folder_store_at(f"{remote}/checkpoints")
    S3Blobs(f"{remote}/checkpoints").write("000001/cut-off/a", b"half")
    assert place.names() == []
    with pytest.raises(FileNotFoundError, match="there is no whole folder s3://"):
        place.opened("000001").__enter__()
    assert place.put("000001", holding(a="whole"))
    assert len(S3Blobs(f"{remote}/checkpoints").names()) == 2, "the leftover is removed"


def test_what_was_made_by_hand_is_put_in_place_when_it_is_finished(remote: str) -> None:
    place = folder_store_at(remote)
    made = place.workshop("policy")
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    assert place.names() == []
    place.finish("policy")
    assert not made.exists()
    copy = local_path(f"{remote}/policy")
    assert (Path(copy) / "config.json").read_text() == "{}"
    assert local_path(f"{remote}/policy") == copy
    assert local_path(str(made)) == str(made), "a folder of this machine is its own copy"


def test_a_damaged_file_is_refused(remote: str) -> None:
    place = folder_store_at(remote)
    place.put("policy", holding(a="good"))
    blobs = S3Blobs(remote)
    (name,) = (name for name in blobs.names() if "/a/" in name)
    blobs.write(name, b"evil")
    with pytest.raises(StoreError, match=r"^cannot read s3://.*: a in .* is damaged: its checksum"):
        local_path(f"{remote}/policy")


@pytest.mark.parametrize("name", ["../../stolen", "/tmp/stolen", "..", ""])
def test_a_foreign_folder_writes_no_file_elsewhere(remote: str, tmp_path: Path, name: str) -> None:
    name = name.replace("/tmp", str(tmp_path))
    place, blobs = folder_store_at(remote), S3Blobs(remote)
    place.put("policy", holding(a="evil"))
    said = json.loads(blobs.read("policy/folder.json") or b"")
    (file,) = said["files"]
    blobs.write("policy/folder.json", json.dumps({"files": [{**file, "name": name}]}).encode())
    with pytest.raises(StoreError, match=r"folder\.json is damaged: .* is not the name of a file"):
        local_path(f"{remote}/policy")
    assert not (tmp_path / "stolen").exists()
