"""Tests that a verifier plants among those of a task, and whose outcomes it knows.

Canaries are tests of random names and numbers, in files between the task's own: some pass, some
fail, and a failure has a known message. A copy is a test of the task that raises a random text once
it has got to its end: code under which failures become passes cannot keep the copy from passing
too. Invariant: a run counts only if every canary ended exactly as planned, and no copy passed.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from rollart_flow.envs.swe.copied_tests import copied_tests
from rollart_flow.envs.swe.file_tree import FileTree, TreeFile
from rollart_flow.envs.swe.pytest_settings import task_settings

COPIES = 4
"""Tests of the task that are copied at most."""
LEFT_OUT = "a planted test was left out"
"""Sign that a planted test has no result."""
_random = secrets.SystemRandom()
T = TypeVar("T")


class SeenResult(Protocol):
    """The outcome of a test, and what it said."""

    @property
    def outcome(self) -> str: ...

    @property
    def message(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PlantedTests:
    """Files with planted tests, and what they have to show."""

    files: Mapping[str, TreeFile] = field(default_factory=dict)
    """The files by path; none of them is in the task."""
    order: tuple[str, ...] = ()
    """Test files in the order in which they run, those of the task among them."""
    outcomes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Canaries by name: the outcome, and what a message contains."""
    copies: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Copies by name: the test of the task, and the text that the copy raises."""

    def check(self, tests: Mapping[str, SeenResult]) -> tuple[list[str], dict[str, bool]]:
        """Compare the planted tests with the results of a session.

        Returns:
            signs that results are forged, in words; `LEFT_OUT` is none if the session was ended.
            Whether copies got to their ends, by the tests, which passed, that they are copies of.
        """
        forged: list[str] = []
        ended: dict[str, bool] = {}
        for name, (outcome, text) in self.outcomes.items():
            seen = tests.get(name)
            if seen is None:
                forged.append(LEFT_OUT)
            elif seen.outcome != outcome or text not in seen.message:
                forged.append(f"a planted test has {seen.outcome}, not as it must have {outcome}")
        for name, (test, text) in self.copies.items():
            seen, original = tests.get(name), tests.get(test)
            if original is None or original.outcome != "passed":
                continue
            if seen is not None and seen.outcome == "passed":
                forged.append("a copy of a test that must fail has passed")
            ended[test] = seen is not None and text in seen.message
        return forged, ended

    def without(self, tests: Mapping[str, T]) -> dict[str, T]:
        """Return the results of the task's own tests."""
        return {
            name: result
            for name, result in tests.items()
            if name.partition("::")[0] not in self.files
        }


def plant(
    tree: FileTree,
    files: Sequence[str],
    copied: Iterable[str] = (),
    most: int = COPIES,
) -> PlantedTests:
    """Return tests to plant among those of some files.

    Args:
        tree: files of the task.
        files: test files of the tree that are to run.
        copied: tests of these files, of which some that are drawn are copied.
        most: number of tests that are drawn at most.
    """
    names = _Names(tree, files)
    sources: dict[str, str] = {}
    outcomes: dict[str, tuple[str, str]] = {}
    order = list(files)
    for place in (0, 1 + _random.randint(0, len(order)), len(order) + 2):
        path = names.path("")
        sources[path], found = _canaries(path, names)
        outcomes |= found
        order.insert(place, path)
    copies: dict[str, tuple[str, str]] = {}
    wanted = sorted(copied)
    drawn = _random.sample(wanted, min(most, len(wanted)))
    for path in sorted({test.partition("::")[0] for test in drawn}):
        found_copies = copied_tests(tree, path, [t for t in drawn if t.startswith(f"{path}::")])
        if found_copies is None:
            continue
        copy = names.path(path.rpartition("/")[0])
        sources[copy], raised = found_copies
        for test, said in raised.items():
            copies[f"{copy}::{test.partition('::')[2]}"] = test, said
        order.insert(len(order) - 1, copy)
    made = {path: TreeFile(text.encode()) for path, text in sources.items()}
    return PlantedTests(made, tuple(order), outcomes, copies)


class _Names:
    """Random names that look like those of a task: of words that its tests use."""

    def __init__(self, tree: FileTree, files: Sequence[str]) -> None:
        text = b"\n".join(tree[path].data for path in files if path in tree).decode(
            errors="replace"
        )
        words = {word for name in re.findall(r"def (\w+)", text) for word in name.split("_")}
        self._words = sorted(word for word in words if word.isalpha() and word.islower())
        self._taken = {path.rpartition("/")[2] for path in tree}
        pattern = (task_settings(tree).get("python_functions", "").split() or ["test_"])[0]
        self._function = pattern if "*" in pattern else pattern + "*"

    def word(self) -> str:
        """Return words, joined, and a number, which no other name has."""
        words = _random.sample(self._words, min(2, len(self._words)))
        word = "_".join((*words, str(_random.randrange(10_000))))
        if f"test_{word}.py" in self._taken or word in self._taken:
            return self.word()
        self._taken.add(word)
        return word

    def path(self, folder: str) -> str:
        """Return the path of a test file that the task does not have."""
        return f"{folder}/test_{self.word()}.py".lstrip("/")

    def function(self) -> str:
        """Return the name of a function that is a test."""
        return self._function.replace("*", self.word())


_KINDS = (
    ("function", "failed", "assert {a} == {b}", "{a} == {b}"),
    ("function", "failed", "raise ValueError('{a}')", "{a}"),
    ("function", "failed", "with pytest.raises(KeyError):\n        int({a})", "DID NOT RAISE"),
    ("function", "passed", "assert {a} + 1 < {b}", ""),
    ("function", "passed", "with pytest.raises(KeyError):\n        dict()[{a}]", ""),
    ("method", "failed", "self.assertEqual({a}, {b})", "{a} != {b}"),
    ("method", "failed", "with self.assertRaises(KeyError):\n            int({a})", "KeyError not"),
    ("method", "passed", "self.assertNotEqual({a}, {b})", ""),
)
"""Where a canary is, its outcome, its body with two numbers, and what its message contains."""


def _canaries(path: str, names: _Names) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return a file of canaries in random order, and their outcomes by name."""
    group = f"Test{names.word().title().replace('_', '')}"
    fails, passes = ([kind for kind in _KINDS if kind[1] == o] for o in ("failed", "passed"))
    kinds = [_random.choice(fails), _random.choice(passes), _random.choice(_KINDS)]
    _random.shuffle(kinds)
    parts = {"function": ["import unittest\n\nimport pytest\n"], "method": []}
    outcomes = {}
    for where, outcome, body, said in kinds:
        a, b = _random.randint(10**6, 10**7), _random.randint(10**8, 10**9)
        code, message = body.format(a=a, b=b), said.format(a=a, b=b)
        if where == "function":
            name = names.function()
            parts[where].append(f"def {name}():\n    {code}\n")
            outcomes[f"{path}::{name}"] = outcome, message
        else:
            name = f"test_{names.word()}"
            parts[where].append(f"    def {name}(self):\n        {code}\n")
            outcomes[f"{path}::{group}::{name}"] = outcome, message
    methods = "\n".join(parts["method"]) or "    pass\n"
    whole = f"class {group}(unittest.TestCase):\n{methods}"
    return "\n".join((*parts["function"], whole)), outcomes
