"""Tasks from rows in the form of SWE-bench, with the repositories on disk, as a domain."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from rollart_flow.envs.swe.domain import SweDomain
from rollart_flow.envs.swe.file_tree import FileTree
from rollart_flow.envs.swe.protected_files import without_tests
from rollart_flow.envs.swe.repositories import files_at
from rollart_flow.envs.swe.swe_task import SweTask, SweTaskStore, check_task
from rollart_flow.envs.swe.unified_diff import apply_diff, make_diff
from rollart_flow.errors import DiffError, SettingsError

_COLUMNS = (
    "instance_id", "repo", "base_commit", "problem_statement", "test_patch", "FAIL_TO_PASS",
    "PASS_TO_PASS",
)  # fmt: skip


@dataclass(frozen=True)
class SweRows(SweDomain):
    """Rows with an issue, a commit and tests; a task is resolved if all of its tests pass.

    The columns are those of SWE-bench: instance_id, repo, base_commit, problem_statement,
    test_patch, FAIL_TO_PASS, PASS_TO_PASS (lists, or JSON texts of lists, with names of tests as
    pytest has them), and, if it is known, patch. Each package has to be importable from its files,
    and what it requires has to be in `packages`: nothing is installed.

    Raises SettingsError if a setting is out of range; asking for tasks raises it if a row or its
    repository cannot be used.
    """

    name: ClassVar[str] = "swe_rows"

    rows: str = ""
    """JSONL or Parquet file."""
    repositories: str = ""
    """Folder with archives or git repositories; see `repositories.files_at`."""
    needs_admission: bool = True
    """Whether only tasks that `rollart tasks check` admitted are trained on."""
    shows_tests: bool = True
    """Whether the agent sees the repository's tests, never those of the test patch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rows or not self.repositories:
            raise SettingsError("SweRows: give rows, a JSONL or Parquet file, and repositories")

    def prepared(self) -> Sequence[str]:
        return _prepared(self)


@lru_cache(maxsize=16)
def _prepared(domain: SweRows) -> tuple[str, ...]:
    """Store the tasks of all rows, or find them stored."""
    path = Path(domain.rows)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"SweRows: {path} cannot be read: {error.strerror}") from error
    store = SweTaskStore(Path(domain.store_folder))
    about = (hashlib.sha256(data).hexdigest(), domain.repositories, domain.shows_tests)
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    manifest = store.folder / "rows" / f"{key}.json"
    if manifest.exists():
        return tuple(json.loads(manifest.read_bytes()))
    folder = Path(domain.repositories)
    digests = tuple(_add(store, row, folder, domain.shows_tests) for row in _rows(path))
    if not digests:
        raise SettingsError(f"SweRows: {path} has no row")
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps(digests))
    return digests


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import polars as pl

    try:
        if path.suffix == ".parquet":
            yield from pl.read_parquet(path).iter_rows(named=True)
            return
        for line in path.read_text().splitlines():
            if line.strip():
                yield json.loads(line)
    except (ValueError, pl.exceptions.PolarsError) as error:
        raise SettingsError(f"SweRows: {path} is no JSONL or Parquet file: {error}") from error


def _add(store: SweTaskStore, row: Mapping[str, Any], folder: Path, shows_tests: bool) -> str:
    missing = [name for name in _COLUMNS if row.get(name) is None]
    if missing:
        raise SettingsError(f"SweRows: a row has no {missing[0]}; it needs {', '.join(_COLUMNS)}")
    name = str(row["instance_id"])
    tree = files_at(folder, str(row["repo"]), str(row["base_commit"]))
    try:
        complete = apply_diff(tree, str(row["test_patch"]))
        gold = _gold(tree, str(row.get("patch") or ""), shows_tests)
    except DiffError as error:
        raise SettingsError(f"SweRows: row {name!r}: {error}") from error
    task = SweTask(
        task_id=name,
        statement=str(row["problem_statement"]),
        tree=store.add_tree(tree),
        test_patch=str(row["test_patch"]),
        gold=gold,
        fail_to_pass=dict.fromkeys(_names(row, "FAIL_TO_PASS"), 0.0),
        pass_to_pass=dict.fromkeys(_names(row, "PASS_TO_PASS"), 0.0),
        shows_tests=shows_tests,
    )
    check_task(task, complete)
    return store.add(task)


def _gold(tree: FileTree, patch: str, shows_tests: bool) -> str:
    """Return a solution as a diff of the files that the agent begins with."""
    if not patch:
        return ""
    solved = apply_diff(tree, patch)
    if shows_tests:
        return make_diff(tree, solved).text
    return make_diff(without_tests(tree), without_tests(solved)).text


def _names(row: Mapping[str, Any], column: str) -> list[str]:
    value = row[column]
    try:
        names = json.loads(value) if isinstance(value, str) else list(value)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"SweRows: row {row['instance_id']!r}: {column} is no list of tests")
    return names
