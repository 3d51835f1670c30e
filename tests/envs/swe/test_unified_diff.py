"""Diffs between trees are exact, are read by git, and are refused where they do not fit."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from rollart_flow.envs.swe.file_tree import TreeFile, read_source
from rollart_flow.envs.swe.unified_diff import apply_diff, changed_paths, make_diff
from rollart_flow.errors import DiffError
from tests.envs.swe.tiny import tree_of

_LINES = (
    "a", "b", "", "--- x", "+++ y", "@@ -1 +1 @@", "diff --git a/x b/x", "\x0c", "é\u2028x", "r\r",
    "\\ No newline at end of file",
)  # fmt: skip


def random_file(random: Random) -> TreeFile:
    text = "\n".join(random.choice(_LINES) for _ in range(random.randrange(12)))
    return TreeFile((text + random.choice(["", "\n"])).encode(), random.random() < 0.3)


def random_trees(random: Random) -> tuple[dict[str, TreeFile], dict[str, TreeFile]]:
    before = {path: random_file(random) for path in "abcd" if random.random() < 0.7}
    after = {path: file for path, file in before.items() if random.random() < 0.5}
    return before, after | {path: random_file(random) for path in "abc" if random.random() < 0.5}


def test_a_diff_gives_exactly_the_files_it_was_made_from() -> None:
    random = Random(1)
    for _ in range(2000):
        before, after = random_trees(random)
        assert apply_diff(before, make_diff(before, after).text) == after


def test_git_applies_a_diff_to_the_same_files(tmp_path: Path) -> None:
    random = Random(2)
    for number in range(20):
        before, after = random_trees(random)
        folder = tmp_path / str(number)
        folder.mkdir()
        for path, file in before.items():
            (folder / path).write_bytes(file.data)
            (folder / path).chmod(0o755 if file.executable else 0o644)
        text = make_diff(before, after).text
        if text:
            command = ["git", "apply", "--unsafe-paths", "-"]
            subprocess.run(command, input=text.encode(), cwd=folder, check=True)
        assert read_source(folder).files == after


def test_a_diff_of_git_with_a_rename_and_a_new_mode_is_applied() -> None:
    text = (
        "diff --git a/old.py b/new.py\nsimilarity index 50%\nrename from old.py\nrename to new.py\n"
        "index 1234567..89abcde 100644\n--- a/old.py\n+++ b/new.py\n@@ -1,2 +1,2 @@ def f():\n"
        " one\n-two\n+three\ndiff --git a/run b/run\nold mode 100644\nnew mode 100755\n"
    )
    before = tree_of({"old.py": "one\ntwo\n", "run": "x\n"})
    assert apply_diff(before, text) == {
        "new.py": TreeFile(b"one\nthree\n"),
        "run": TreeFile(b"x\n", executable=True),
    }
    assert changed_paths(text) == ("old.py", "new.py", "run")


def test_a_file_of_many_lines_is_replaced_as_a_whole() -> None:
    before = tree_of({"a": "x\n" * 30_000})
    after = tree_of({"a": "x\n" * 30_001})
    text = make_diff(before, after).text
    assert text.count("@@") == 2
    assert apply_diff(before, text) == after


def test_files_that_are_no_text_are_left_out() -> None:
    after = {"image": TreeFile(b"\0\1"), "latin": TreeFile(b"\xff"), "text": TreeFile(b"x\n")}
    difference = make_diff({}, after)
    assert difference.left_out == ("image", "latin")
    assert difference.paths == ("text",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("diff --git a/../x b/../x\nnew file mode 100644\n", "no path of the task"),
        ("diff --git a//etc/x b//etc/x\nnew file mode 100644\n", "no path of the task"),
        ("diff --git a/.git/config b/.git/config\nnew file mode 100644\n", "no path of the task"),
        ("diff --git a/new b/new\nnew file mode 120000\n", "a link or another odd file"),
        ("diff --git a/a b/a\nGIT binary patch\n", "binary file"),
        ("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-other\n+x\n", "does not fit 'a'"),
        ("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,3 +1 @@\n-one\n", "ends too early"),
        ("diff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-x\n+y\n", "does not exist"),
        ("diff --git a/a b/a\nnew file mode 100644\n", "which exists"),
        ("something else\n", "no header of a file"),
    ],
)
def test_what_does_not_fit_or_leads_elsewhere_is_refused(text: str, reason: str) -> None:
    with pytest.raises(DiffError, match=reason):
        apply_diff(tree_of({"a": "one\n"}), text)
