"""The site is whole before it is built: every page is listed, and every link and name resolves."""

import re
from importlib import import_module
from os.path import relpath
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, pages

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
GENERATED = {"reference/tables.md", "architecture.md", "contributing.md", "changelog.md"}
"""Pages that `docs/hooks.py` makes."""
_LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def listed(entries: list[object]) -> list[str]:
    """Paths of the pages below entries of the navigation."""
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, dict):
            for below in entry.values():
                found += listed(below)
        else:
            found.append(str(entry))
    return found


def prose(path: Path) -> str:
    return _CODE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as mkdocs and GitHub name them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"\s+", "-", heading) for heading in plain}


def test_every_page_is_in_the_navigation() -> None:
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(listed(SITE["nav"])) == written | GENERATED


def test_nothing_is_fetched_by_a_reader() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css"} & set(SITE)
    drawn = [page for page in pages() if page.startswith("docs/")]
    assert not [page for page in drawn if "```mermaid" in (ROOT / page).read_text()]


@pytest.mark.parametrize("page", [*pages(), "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target, anchor in _LINK.findall(prose(path)):
        if target.startswith(("http://", "https://")):
            continue
        to = path if not target else (path.parent / target).resolve()
        if relpath(to, ROOT / "docs") in GENERATED:
            continue
        assert to.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(to), f"{page}: #{anchor}"


def test_the_reference_names_what_exists() -> None:
    text = "".join((ROOT / page).read_text() for page in pages() if "reference/" in page)
    names = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(names) > 30
    for name in names:
        found: object = import_module("rollart_flow")
        path = "rollart_flow"
        for part in name.split(".")[1:]:
            path = f"{path}.{part}"
            try:
                found = import_module(path)
            except ModuleNotFoundError:
                found = getattr(found, part)
        assert found is not None


def test_the_tables_page_covers_every_schema() -> None:
    hook = (ROOT / "docs" / "hooks.py").read_text()
    for schema in (ROOT / "schemas").glob("*.json"):
        assert f'"{schema.stem}"' in hook
