"""The tree of errors in the docstring of `rollart_flow.errors` is the tree of its classes."""

import re

import pytest

from rollart_flow import errors
from rollart_flow.errors import RollartError

DRAWN = re.compile(r"^ {4}(?P<indent>[\u2502\u251c\u2514\u2500 ]*)(?P<name>\w+Error)", re.MULTILINE)
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, RollartError)
}


def drawn_parents() -> dict[str, str | None]:
    """Parent by class name, as the docstring draws them."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for match in DRAWN.finditer(errors.__doc__ or ""):
        path = [*path[: len(match["indent"]) // 4], match["name"]]
        parents[match["name"]] = path[-2] if len(path) > 1 else None
    return parents


def test_the_docstring_names_every_error() -> None:
    assert drawn_parents().keys() == CLASSES.keys()


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"RollartError"}))
def test_an_error_is_drawn_below_its_parent(name: str) -> None:
    assert drawn_parents()[name] == CLASSES[name].__bases__[0].__name__
