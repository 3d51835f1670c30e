"""Trees are read from folders, archives and boxes without anything but regular files."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from rollart_flow.envs.swe import file_tree
from rollart_flow.envs.swe.file_tree import (
    FileTree,
    TreeFile,
    pack_tar,
    read_source,
    read_tar,
    tree_digest,
)
from rollart_flow.envs.swe.protected_files import with_task_files, without_tests
from rollart_flow.errors import SettingsError
from tests.envs.swe.tiny import PACKAGE, tree_of, written


def test_a_packed_tree_is_the_same_when_it_is_read() -> None:
    tree = {**tree_of(PACKAGE), "run.sh": TreeFile(b"x", executable=True)}
    assert read_tar(pack_tar(tree)).files == tree
    assert pack_tar(dict(reversed(tree.items()))) == pack_tar(tree)


def test_the_digest_knows_contents_names_and_modes() -> None:
    trees: tuple[FileTree, ...] = (
        {}, tree_of({"a": "x"}), tree_of({"a": "y"}), tree_of({"b": "x"}),
        {"a": TreeFile(b"x", executable=True)},
    )  # fmt: skip
    assert len({tree_digest(tree) for tree in trees}) == len(trees)


def test_links_devices_and_odd_names_of_a_box_are_left_out_and_told() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("link", tarfile.SYMTYPE), ("pipe", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        for name in ("../up", "/etc/shadow", "a\nb", ".git/config", "x/__pycache__/m.pyc", "good"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    reading = read_tar(buffer.getvalue())
    assert set(reading.files) == {"good"}
    assert len(reading.odd) == 5


def test_a_source_archive_is_read_below_its_one_folder(tmp_path: Path) -> None:
    folder = written(tmp_path / "marks-1.0", PACKAGE)
    written(folder, {".git/HEAD": "x", "marks/__pycache__/a.pyc": "x"})
    os.symlink("/etc/passwd", folder / "link")
    packed = tmp_path / "marks-1.0.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, "marks-1.0")
    zipped = tmp_path / "marks-1.0.zip"
    with zipfile.ZipFile(zipped, "w") as other:
        for path, text in PACKAGE.items():
            other.writestr(f"marks-1.0/{path}", text)
    expected = tree_of(PACKAGE)
    assert [read_source(path).files for path in (folder, packed, zipped)] == [expected] * 3


def test_what_is_no_source_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="neither a folder nor an archive"):
        read_source(tmp_path / "none")
    (tmp_path / "text").write_text("x")
    with pytest.raises(SettingsError, match="no tar archive"):
        read_source(tmp_path / "text")
    monkeypatch.setattr(file_tree, "MAX_TREE_BYTES", 10)
    with pytest.raises(SettingsError, match="the files exceed"):
        read_tar(pack_tar(tree_of({"a": "x" * 11})))


def test_tests_and_what_python_loads_by_itself_come_from_the_task() -> None:
    task = tree_of({**PACKAGE, "tests/conftest.py": "", "setup.cfg": "[x]"})
    left = tree_of({
        "marks/__init__.py": "fixed", "tests/test_marks.py": "def test_x(): 1", "conftest.py": "",
        "pytest.ini": "", "sitecustomize.py": "", "e.pth": "", "a.dist-info/entry_points.txt": "",
        "marks/test_more.py": "", "setup.cfg": "[mine]",
    })  # fmt: skip
    assert with_task_files(left, task) == tree_of({
        "marks/__init__.py": "fixed", "setup.cfg": "[mine]", "tests/conftest.py": "",
        "tests/test_marks.py": PACKAGE["tests/test_marks.py"],
    })  # fmt: skip
    assert set(without_tests(task)) == {"marks/__init__.py", "README.md", "setup.cfg"}
