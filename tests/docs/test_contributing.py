"""CONTRIBUTING.md names every family of variants that another package can extend."""

import re

from tests.docs.pages import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_family_with_a_registry_is_named() -> None:
    sources = (path.read_text() for path in (ROOT / "rollart_flow").rglob("*.py"))
    families = {name for text in sources for name in re.findall(r'= Registry\(\s*"(\w+)"', text)}
    assert len(families) >= 6
    assert set(re.findall(r"^\| `rollart_flow\.(\w+)` \|", TEXT, re.MULTILINE)) == families


def test_every_file_to_touch_is_said_for_each_kind_of_extension() -> None:
    for kind in ("environment", "algorithm", "column", "schedule", "engine", "transport"):
        section = next(part for part in TEXT.split("\n### ")[1:] if kind in part.splitlines()[0])
        assert "| file |" in section, kind
