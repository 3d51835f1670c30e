"""A package of a few lines with tests, and what tests of SWE tasks share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollart_flow.envs import Environment
from rollart_flow.envs.swe.file_tree import TreeFile
from rollart_flow.sandbox.base import SandboxLimits
from rollart_flow.types import Action, ToolCall

SOURCE = '''"""Marks of pupils."""


def grade(points, most=100):
    """Return the grade of a number of points."""
    if points < 0 or points > most:
        raise ValueError("points are out of range")
    share = points / most
    return "A" if share >= 0.9 else "B" if share >= 0.5 else "C"


def total(points):
    """Return the sum of all points above zero."""
    found = 0
    for point in points:
        if point > 0:
            found += point
    return found
'''
TESTS = """import unittest

import pytest

from marks import grade, total


@pytest.mark.parametrize(("points", "mark"), [(90, "A"), (50, "B"), (49, "C")])
def test_grades_have_their_bounds(points, mark):
    assert grade(points) == mark


def test_points_have_a_range():
    assert grade(100) == "A"
    with pytest.raises(ValueError):
        grade(101)


class TotalTest(unittest.TestCase):
    def test_points_are_added(self):
        self.assertEqual(total([1, 2, -4]), 3)

    def test_nothing_is_zero(self):
        self.assertEqual(total([]), 0)
"""
PACKAGE = {"marks/__init__.py": SOURCE, "tests/test_marks.py": TESTS, "README.md": "Marks.\n"}
FAULT = SOURCE.replace(">= 0.5", "> 0.5")
SPEC_LIMITS = SandboxLimits(memory_mb=512, disk_mb=64)


def tree_of(texts: dict[str, str]) -> dict[str, TreeFile]:
    """A tree of texts by path."""
    return {path: TreeFile(text.encode()) for path, text in texts.items()}


def written(folder: Path, texts: dict[str, str]) -> Path:
    """A folder with texts by path."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def call(name: str, **arguments: object) -> Action:
    """An action with one call."""
    return Action("", None, (ToolCall("1", name, arguments),))


SUBMIT = call("submit")


def said(step: tuple[Any, ...]) -> str:
    """What the last tool of a step answered."""
    return str(step[0][-1].text)


def played(
    environment: Environment, task: str, actions: Sequence[Any]
) -> tuple[float, dict[str, Any]]:
    """The reward and `info` of an attempt, which has to end with its last action."""
    environment.reset(0, task)
    reward, info, ended = 0.0, {}, False
    try:
        for action in actions:
            assert not ended
            _, gained, terminated, truncated, found = environment.step(action)
            reward, info, ended = reward + gained, dict(found), terminated or truncated
        assert ended
    finally:
        environment.close()
    return reward, info


def kinds(info: dict[str, Any]) -> set[str]:
    """Kinds of the suspicions."""
    return {text.partition(":")[0] for text in info["suspicions"]}
