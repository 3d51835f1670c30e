"""Rows in the form of SWE-bench: repositories on disk, test patches, and what is refused."""

import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.envs import SweRows
from rollart_flow.envs.swe.repositories import files_at
from rollart_flow.envs.swe.unified_diff import make_diff
from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Split
from tests.envs.swe.tiny import FAULT, PACKAGE, SOURCE, TESTS, call, played, said, tree_of, written

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

OLD_TESTS = TESTS.replace('(50, "B"), ', "")
BEFORE = {**PACKAGE, "marks/__init__.py": FAULT, "tests/test_marks.py": OLD_TESTS}
FAILS = "tests/test_marks.py::test_grades_have_their_bounds[50-B]"
PASSES = "tests/test_marks.py::test_points_have_a_range"


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder without the settings of this machine."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    command = ["git", "-C", str(folder), *who, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


@pytest.fixture
def repositories(tmp_path: Path) -> tuple[Path, str]:
    """A folder with a repository, and the commit before the fault was repaired in a later one."""
    folder = written(tmp_path / "repositories" / "school__marks", BEFORE)
    (folder / ".gitattributes").write_text("tests export-ignore\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "before")
    commit = git(folder, "rev-parse", "HEAD")
    written(folder, PACKAGE)
    git(folder, "commit", "-q", "-a", "-m", "the repair")
    return tmp_path / "repositories", commit


def row(commit: str, **more: Any) -> dict[str, Any]:
    """A row whose patches are those of the later commit."""
    texts = {"instance_id": "school__marks-1", "repo": "school/marks", "base_commit": commit}
    before, after = tree_of({"tests/test_marks.py": OLD_TESTS}), tree_of({
        "tests/test_marks.py": TESTS,
    })  # fmt: skip
    fault, good = tree_of({"marks/__init__.py": FAULT}), tree_of({"marks/__init__.py": SOURCE})
    return {
        **texts,
        "problem_statement": "50 of 100 points are a B.",
        "test_patch": make_diff(before, after).text,
        "patch": make_diff(fault, good).text,
        "FAIL_TO_PASS": json.dumps([FAILS]),
        "PASS_TO_PASS": [PASSES],
        **more,
    }


def domain_of(tmp_path: Path, repositories: Path, *rows: dict[str, Any]) -> SweRows:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return SweRows(
        rows=str(path),
        repositories=str(repositories),
        folder=str(tmp_path / "store"),
        held_out_fraction=0.0,
    )


def test_a_row_is_resolved_by_its_patch_and_not_by_nothing(
    tmp_path: Path, repositories: tuple[Path, str]
) -> None:
    domain = domain_of(tmp_path, repositories[0], row(repositories[1]))
    (task,) = domain.tasks(Split.EVALUATION, 0)
    assert task.task_id == "swe_rows/school__marks-1"
    reward, info = played(domain.make(), task.payload, domain.solutions(task)["gold"])
    assert (reward, info["success"]) == (1.0, True)
    reward, info = played(domain.make(), task.payload, domain.solutions(task)["noop"])
    assert (reward, info["success"]) == (0.0, False)
    verdicts = {v["key"]: (v["passed"], v["value"]) for v in info["verdicts"]}
    assert verdicts == {
        "fail_to_pass": (None, 0.0), f"fail_to_pass/{FAILS}": (False, None),
        "pass_to_pass": (None, 1.0),
    }  # fmt: skip


def test_a_change_that_breaks_another_test_is_not_resolved(
    tmp_path: Path, repositories: tuple[Path, str]
) -> None:
    domain = domain_of(tmp_path, repositories[0], row(repositories[1]))
    (task,) = domain.tasks(Split.EVALUATION, 0)
    command = "sed -i 's/> 0.5/>= 0.5/; s/raise ValueError/print/' marks/__init__.py"
    reward, info = played(
        domain.make(), task.payload, [call("bash", command=command), call("submit")]
    )
    assert reward == 0.0
    failed = [v["key"] for v in info["verdicts"] if v["passed"] is False]
    assert failed == [f"pass_to_pass/{PASSES}"]


def test_the_agent_sees_no_later_commit_and_no_new_test(
    tmp_path: Path, repositories: tuple[Path, str]
) -> None:
    domain = domain_of(tmp_path, repositories[0], row(repositories[1]))
    (task,) = domain.tasks(Split.EVALUATION, 0)
    environment = domain.make()
    environment.reset(0, task.payload)
    looks = (
        "git log --all --oneline | wc -l; git cat-file --batch-check --batch-all-objects "
        "| grep -c commit; git grep -c '50, \"B\"' $(git rev-list --all); ls tests"
    )
    answer = said(environment.step(call("bash", command=looks)))
    environment.close()
    assert answer.split() == ["1", "1", "test_marks.py"]


def test_rows_may_be_parquet_and_sources_archives(
    tmp_path: Path, repositories: tuple[Path, str]
) -> None:
    folder, commit = repositories
    packed = tmp_path / "archives"
    packed.mkdir()
    git(folder / "school__marks", "checkout", "-q", commit)
    with tarfile.open(packed / f"school__marks-{commit}.tar.gz", "w:gz") as archive:
        archive.add(folder / "school__marks", "marks")
    assert files_at(packed, "school/marks", commit) == files_at(folder, "school/marks", commit)
    table = pl.DataFrame([row(commit, FAIL_TO_PASS=[FAILS])])
    table.write_parquet(tmp_path / "rows.parquet")
    domain = SweRows(
        rows=str(tmp_path / "rows.parquet"), repositories=str(packed), folder=str(tmp_path / "s"),
        held_out_fraction=0.0,
    )  # fmt: skip
    assert len(domain.prepared()) == 1


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"problem_statement": None}, "a row has no problem_statement"),
        ({"repo": "other/name"}, "has no files of other/name: add the archive"),
        ({"base_commit": "1234abcd"}, "Not a valid object name|not a tree|ambiguous"),
        ({"FAIL_TO_PASS": "test_a"}, "FAIL_TO_PASS is no list of tests"),
        ({"FAIL_TO_PASS": "[]"}, "names no test that has to pass"),
        ({"FAIL_TO_PASS": ["tests/none.py::test_x"]}, "'tests/none.py' is missing"),
        ({"FAIL_TO_PASS": ["README.md::test_x"]}, "no file that the verifier restores"),
        ({"test_patch": "diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b\n"}, "'x', which does not exist"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, repositories: tuple[Path, str], more: dict[str, Any], reason: str
) -> None:
    domain = domain_of(tmp_path, repositories[0], row(repositories[1], **more))
    with pytest.raises(SettingsError, match=reason):
        domain.prepared()


def test_files_that_are_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="give rows"):
        SweRows()
    with pytest.raises(SettingsError, match="cannot be read"):
        SweRows(rows=str(tmp_path / "none"), repositories="x").prepared()
    (tmp_path / "rows.jsonl").write_text("{")
    domain = SweRows(rows=str(tmp_path / "rows.jsonl"), repositories="x", folder=str(tmp_path))
    with pytest.raises(SettingsError, match="is no JSONL or Parquet file"):
        domain.prepared()
