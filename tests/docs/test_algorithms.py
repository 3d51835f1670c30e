"""docs/algorithms.md lists every recipe and every correction."""

import re

from rollart_flow.algorithms.registry import CORRECTIONS, RECIPES
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "algorithms.md").read_text()


def listed(heading: str) -> set[str]:
    """Names in the first column of the first table below a heading."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)(?:\(.*?\))?` \|", section, re.MULTILINE))


def test_recipes_are_all_there_are() -> None:
    assert listed("Recipes") == {*RECIPES.names()} - set(CORRECTIONS.names())


def test_corrections_are_all_there_are() -> None:
    assert listed("Ratios and corrections") == {*CORRECTIONS.names()}
