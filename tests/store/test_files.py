"""Small files are whole or absent, and every failure is one line."""

import threading
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store import files


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> str:
    """An object store in memory, behind the same `pyarrow.fs` interface as S3.

    A server that speaks S3 cannot be started here without packages beyond the project's own.
    """
    memory = pafs._MockFileSystem()
    memory.create_dir("bucket/runs/a")

    def filesystem(folder: str) -> pafs.FileSystem:
        path = folder.removeprefix("s3://")
        memory.create_dir(path)
        return pafs.SubTreeFileSystem(path, memory)

    monkeypatch.setattr(files, "filesystem", filesystem)
    return "s3://bucket/runs"


def root(kind: str, tmp_path: Path, remote: str) -> str:
    """The address of an empty folder, local or remote."""
    return remote if kind == "remote" else str(tmp_path)


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_files_and_folders(kind: str, tmp_path: Path, remote: str) -> None:
    uri = files.join(root(kind, tmp_path, remote), "a", "f")
    assert files.read(uri) is None
    assert files.write(uri, b"one")
    assert not files.write(uri, b"two", exclusive=True)
    assert files.read(uri) == b"one"
    assert files.write(uri, b"two")
    assert files.read(uri) == b"two"
    files.write_new(uri + "2", memoryview(b"three"))
    assert files.read(uri + "2") == b"three"
    assert files.folders(root(kind, tmp_path, remote)) == ["a"]
    files.remove(uri)
    assert files.read(uri) is None


def test_addresses() -> None:
    assert files.normalize("s3://b/x/") == "s3://b/x"
    assert files.normalize("file:///tmp/x/") == "/tmp/x"
    assert files.normalize("x/../y") == str(Path.cwd() / "y")
    assert files.is_remote("s3://b/x")
    assert not files.is_remote("file:///tmp/x")


def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8333")
    monkeypatch.delenv("AWS_REGION", raising=False)
    options = files.storage_options("s3://b/x")
    assert options is not None
    assert options["AWS_ENDPOINT_URL"] == "http://127.0.0.1:8333"
    assert "AWS_REGION" not in options
    assert files.storage_options("/tmp/x") is None


def test_an_exclusive_name_goes_to_one_of_many(tmp_path: Path) -> None:
    uri, won = str(tmp_path / "f"), []

    def claim(number: int) -> None:
        if files.write(uri, str(number).encode(), exclusive=True):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files.read(uri) == str(won[0]).encode()
    assert len(won) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_failures_are_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(
        StoreError, match=r"^cannot write .*/file/f: (Not a directory|File exists)$"
    ):
        files.write(f"{blocked}/f", b"")
    with pytest.raises(StoreError, match=r"^cannot write .*/file: File exists$"):
        files.write_new(str(blocked), memoryview(b""))
    with pytest.raises(StoreError, match=r"^cannot read .*: Is a directory$"):
        files.read(str(tmp_path))
    assert files.folders(str(blocked)) == []
    assert blocked.read_text() == "x"
