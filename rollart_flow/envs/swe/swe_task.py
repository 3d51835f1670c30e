"""A SWE task as it is stored: an issue, the files it begins with, and the tests that judge it.

Tasks lie in a folder, each as JSON under the digest of its contents; trees of files are stored once
under theirs. A task whose stored bytes no longer have their digest is refused.

    tasks/DIGEST.json      trees/DIGEST.tar
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from rollart_flow.envs.swe.file_tree import FileTree, TreeFile, pack_tar, read_tar, tree_digest
from rollart_flow.envs.swe.protected_files import is_protected, without_tests
from rollart_flow.envs.swe.unified_diff import apply_diff
from rollart_flow.errors import EnvironmentFailedError, SettingsError


class SweTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task. Trees follow from `tree`: its setup gives the faulty files with all tests."""

    task_id: str
    statement: str
    """The issue, as the agent reads it."""
    tree: str
    """Digest of the files before `setup`."""
    setup: str = ""
    """Diff that gives the files that the task begins with."""
    test_patch: str = ""
    """Diff that gives the verifier's tests."""
    gold: str = ""
    """Diff that solves the task; empty if none is known."""
    fail_to_pass: Mapping[str, float]
    """Tests that fail at the beginning and pass once the task is solved, each with the seconds
    that it took in the solution; 0 where it was not measured."""
    pass_to_pass: Mapping[str, float]
    """Tests that pass at the beginning and still have to at the end."""
    provable: tuple[str, ...] = ()
    """Tests of `fail_to_pass` whose planted copies get to their ends in the solution, so that a
    test that passes without that counts for nothing; empty: copies only raise suspicions."""
    shows_tests: bool = False
    """Whether the agent sees the tests of the tree, never those of `test_patch`."""

    @property
    def digest(self) -> str:
        """SHA-256 of the task's contents, as hex digits."""
        return hashlib.sha256(_encoded(self)).hexdigest()


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The trees of a task."""

    start: FileTree
    """Files that the agent begins with, and that diffs are made against."""
    complete: FileTree
    """Files that the agent begins with, and the verifier's tests."""


class SweTaskStore:
    """Tasks in a folder.

    Args:
        folder: created with the first task.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add_tree(self, tree: FileTree) -> str:
        """Store a tree unless it is there; return its digest."""
        digest = tree_digest(tree)
        path = self.folder / "trees" / f"{digest}.tar"
        if not path.exists():
            _write(path, pack_tar(tree))
        return digest

    def add(self, task: SweTask) -> str:
        """Store a task; return its digest."""
        digest = task.digest
        _write(self.folder / "tasks" / f"{digest}.json", _encoded(task))
        return digest

    def task(self, digest: str) -> SweTask:
        """Return a stored task.

        Raises:
            EnvironmentFailedError: it is not there, or was changed.
        """
        path = self.folder / "tasks" / f"{digest}.json"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EnvironmentFailedError(f"the SWE task {path} cannot be read: {error}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise EnvironmentFailedError(f"the SWE task {path} was changed; make it again")
        return msgspec.json.decode(data, type=SweTask)

    def tree(self, digest: str) -> dict[str, TreeFile]:
        """Return a stored tree.

        Raises:
            EnvironmentFailedError: it is not there, or was changed.
        """
        return _tree(self.folder / "trees" / f"{digest}.tar", digest)

    def files(self, task: SweTask) -> TaskFiles:
        """Return the trees of a task; see `tree` for errors."""
        faulty = apply_diff(self.tree(task.tree), task.setup)
        complete = apply_diff(faulty, task.test_patch)
        start = faulty if task.shows_tests else without_tests(faulty)
        return TaskFiles(start, complete)


def files_of_tests(task: SweTask) -> tuple[str, ...]:
    """Return the files of a task's tests, in the order of their names."""
    named = (*task.fail_to_pass, *task.pass_to_pass)
    return tuple(sorted({name.partition("::")[0] for name in named}))


def check_task(task: SweTask, complete: FileTree) -> None:
    """Refuse a task that nothing can judge.

    Raises:
        SettingsError: names the task.
    """
    if not task.fail_to_pass:
        raise SettingsError(f"SWE task {task.task_id!r} names no test that has to pass")
    for path in files_of_tests(task):
        if path not in complete:
            raise SettingsError(f"SWE task {task.task_id!r}: its test file {path!r} is missing")
        if not is_protected(path):
            raise SettingsError(
                f"SWE task {task.task_id!r}: {path!r} is no file that the verifier restores; call "
                "it test_*.py or *_test.py, or keep it in a folder tests"
            )


def _encoded(task: SweTask) -> bytes:
    return msgspec.json.encode(task, order="sorted")


def _write(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    Path(name).replace(path)


@lru_cache(maxsize=8)
def _tree(path: Path, digest: str) -> dict[str, TreeFile]:
    if not path.exists():
        raise EnvironmentFailedError(f"the files {path} of a SWE task are missing; make it again")
    try:
        files = read_tar(path).files
    except SettingsError as error:
        raise EnvironmentFailedError(str(error)) from error
    if tree_digest(files) != digest:
        raise EnvironmentFailedError(f"the files {path} of a SWE task were changed; make it again")
    return files
