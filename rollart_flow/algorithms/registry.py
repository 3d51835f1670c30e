"""Algorithms by name: recipes and corrections, each in a module of its own name.

A module `recipes/NAME.py` or `corrections/NAME.py` defines the function NAME. The folders are the
list, so that a new file needs no other change; a package adds a recipe by an entry point of the
group `rollart_flow.algorithms`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollart_flow.registry import Registry


def _functions(folder: str) -> dict[str, str]:
    """`module:function` of each module of a folder, by name."""
    return {
        path.stem: f"rollart_flow.algorithms.{folder}.{path.stem}:{path.stem}"
        for path in sorted((Path(__file__).parent / folder).glob("[!_]*.py"))
    }


RECIPES: Registry[Callable[..., Any]] = Registry(
    "algorithms", _functions("recipes"), setting="algorithm"
)
"""Functions that make an `Algorithm`."""
CORRECTIONS: Registry[Callable[..., Any]] = Registry(
    "corrections", _functions("corrections"), setting="correction"
)
"""Functions that make a `Correction`."""
