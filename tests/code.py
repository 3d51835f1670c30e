"""The code of the package, which several tests look through."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "rollart_flow"


def modules(folder: Path = PACKAGE) -> list[Path]:
    """All modules in a folder of the package, in order of their paths."""
    return sorted(folder.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module, which is not to be changed; it is parsed once."""
    return ast.parse(path.read_text())
