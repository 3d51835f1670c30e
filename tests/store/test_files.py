"""Small files are whole or absent, and every failure is one line."""

import re
import threading
from pathlib import Path

import pytest

from rollart_flow.errors import SettingsError, StoreError
from rollart_flow.store import files


def test_files_and_folders(tmp_path: Path) -> None:
    uri = files.join(str(tmp_path), "a", "f")
    assert files.read(uri) is None
    assert files.write(uri, b"one")
    assert not files.write(uri, b"two", exclusive=True)
    assert files.read(uri) == b"one"
    assert files.write(uri, b"two")
    assert files.read(uri) == b"two"
    files.write_new(uri + "2", memoryview(b"three"))
    assert files.read(uri + "2") == b"three"
    assert files.folders(str(tmp_path)) == ["a"]
    files.remove(uri)
    assert files.read(uri) is None
    files.clear(str(tmp_path / "a"))
    assert files.folders(str(tmp_path)) == []
    files.clear(str(tmp_path / "a"))


def test_addresses() -> None:
    assert files.normalize("s3://bucket/x/") == "s3://bucket/x"
    assert files.normalize("s3a://bucket//x/y/") == "s3://bucket/x/y"
    assert files.normalize("s3://bucket/") == "s3://bucket"
    assert files.normalize("file:///tmp/x/") == "/tmp/x"
    assert files.normalize("x/../y") == str(Path.cwd() / "y")
    assert files.is_remote("s3://bucket/x")
    assert not files.is_remote("file:///tmp/x")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("gs://bucket/runs", "gs:// is no store; take a folder or s3://bucket/prefix"),
        ("s3:/bucket/runs", "'s3:/bucket/runs' names no bucket; write s3://bucket/prefix"),
        ("s3://", "'s3://' names no bucket"),
        ("s3://ab/runs", "a bucket of 3 to 63 small letters"),
        ("s3://My_Runs", "'s3://My_Runs' names no bucket"),
        ("s3://bucket/runs?region=x", "s3://bucket/runs must end there, without ? and #"),
    ],
)
def test_an_address_that_is_none_is_refused_at_once(address: str, said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)) as caught:
        files.normalize(address)
    assert "\n" not in str(caught.value)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="an s3:// address takes no credentials") as caught:
        files.normalize("s3://AKIAKEY:topsecret@bucket/runs")
    assert "topsecret" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


def test_a_local_path_has_no_storage_options(tmp_path: Path) -> None:
    assert files.storage_options(str(tmp_path)) is None


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
