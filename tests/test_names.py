"""One class name stands for one thing in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.code import PACKAGE, modules, tree


def defined(package: Path) -> dict[str, list[str]]:
    """Places of each class of a package: several where one name stands for several things."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules(package):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(package)}:{node.lineno}")
    return found


def twice(package: Path) -> dict[str, list[str]]:
    return {name: places for name, places in defined(package).items() if len(places) > 1}


def test_every_class_name_stands_for_one_thing() -> None:
    assert not twice(PACKAGE)


def test_a_name_that_is_taken_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Pool: ...\n")
    (tmp_path / "other.py").write_text("def make():\n    class Pool: ...\n")
    assert twice(tmp_path) == {"Pool": ["one.py:1", "other.py:2"]}
