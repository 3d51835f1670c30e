"""What a box packs is unpacked on the host, and nothing else is touched there."""

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollart_flow.sandbox.archives import ENTRY, packed_file, unpack_entry
from tests.sandbox.images.builders import file, other, tar

LIMIT = 1 << 20
Entry = tuple[tarfile.TarInfo, bytes]


def folder(name: str) -> Entry:
    return other(name, tarfile.DIRTYPE, mode=0o755)


def link(name: str, target: str) -> Entry:
    return other(name, tarfile.SYMTYPE, target)


def unpacked(entries: Sequence[Entry], target: Path) -> str:
    return unpack_entry(io.BytesIO(tar(*entries)), target, LIMIT)


def test_a_folder_arrives_with_its_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "script").write_text("echo")
    (source / "inner" / "script").chmod(0o777)
    (source / "inner" / "up").symlink_to("../inner/./script")
    (source / "missing").symlink_to("inner/nothing")
    os.link(source / "inner" / "script", source / "second")
    assert unpack_entry(io.BytesIO(packed_file(source, ENTRY)), tmp_path / "a" / "b", LIMIT) == ""
    target = tmp_path / "a" / "b"
    assert sorted(os.listdir(target)) == ["inner", "missing", "second"]
    assert (target / "inner" / "up").read_text() == (target / "second").read_text() == "echo"
    assert os.readlink(target / "missing") == "inner/nothing"
    about = (target / "inner" / "script").stat()
    assert (about.st_mode & 0o7777, about.st_uid) == (0o755, os.geteuid())
    assert os.listdir(tmp_path / "a") == ["b"]


CHAIN = [folder("entry/a"), link("entry/a/up", ".."), link("entry/out", "a/up/../host")]
"""Each link stays inside by its text; the second one does not once the first is followed."""
LATER = [CHAIN[0], CHAIN[2], CHAIN[1]]
"""The link is there before the one that it passes through."""
CIRCLE = [link("entry/a", "b"), link("entry/b", "a")]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([link("entry/etc", "/etc")], "the link 'etc' leads out"),
        ([link("entry/up", "..")], "the link 'up' leads out"),
        ([link("entry", "host")], "the link 'entry' leads out"),
        (CHAIN, "the link 'out' leads out"),
        (LATER, "the link 'out' leads out"),
        (CIRCLE, "leads out"),
        ([file("entry/../host/new")], "the path 'entry/../host/new' leads out"),
        ([other("entry/a", tarfile.LNKTYPE, "../host/secret")], "leads out"),
        ([other("entry/a", tarfile.LNKTYPE, "/host/secret")], "which is no file"),
        ([other("entry/disk", tarfile.BLKTYPE, devmajor=8)], "'entry/disk' is a device"),
        ([other("entry/pipe", tarfile.FIFOTYPE)], "'entry/pipe' is a device, a pipe"),
        ([file("entry/large", bytes(LIMIT + 1))], "larger than the 1 MiB"),
        ([file("other")], "no such file"),
    ],
)
def test_what_may_not_be_copied_leaves_nothing(
    entries: list[Entry], message: str, tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("of the host")
    said = unpacked(entries, tmp_path / "copy")
    assert message in said
    assert not said.startswith("image")
    assert os.listdir(tmp_path) == ["host"]
    assert [path.read_text() for path in (tmp_path / "host").iterdir()] == ["of the host"]


def test_a_path_longer_than_the_kernel_takes_leads_nowhere(tmp_path: Path) -> None:
    """CVE-2025-4517: short links stand for a path of more than 4,096 bytes, which leads out, and of
    which `realpath` makes one inside the folder."""
    host = tmp_path / "host"
    host.mkdir()
    (host / "secret").write_text("of the host")
    long, steps, place = "d" * 247, "abcdefghijklmnop", "entry"
    entries = [folder("entry")]
    for step in steps:
        entries += [folder(f"{place}/{long}"), link(f"{place}/{step}", long)]
        place = f"{place}/{long}"
    through = "/".join(steps) + "/" + "l" * 254
    entries += [
        link(f"entry/{through}", "../" * len(steps)),
        link("entry/out", f"{through}/../../host"),
        other("entry/flag", tarfile.LNKTYPE, "entry/out/secret"),
        file("entry/flag", b"of the box"),
        file("entry/out/new", b"of the box"),
    ]
    assert unpacked(entries, tmp_path / "copy") != ""
    assert os.listdir(tmp_path) == ["host"]
    assert {path.name: path.read_text() for path in host.iterdir()} == {"secret": "of the host"}


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    whole = tar(file("entry/a", bytes(100_000)))
    assert "damaged" in unpack_entry(io.BytesIO(whole[:5_000]), tmp_path / "copy", LIMIT)
    assert os.listdir(tmp_path) == []


def test_a_target_that_exists_stays(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("mine")
    assert "exists" in unpacked([file("entry")], tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "mine"
