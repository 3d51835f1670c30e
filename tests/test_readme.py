"""The README is short, shows the demo's pipeline, and leads to pages that exist.

`tests/docs/test_blocks.py` runs its code blocks, `tests/docs/test_site.py` checks its links.
"""

from tests.docs.pages import ROOT, blocks

README = (ROOT / "README.md").read_text()


def test_it_is_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_its_pipeline_is_the_demos_in_about_20_lines() -> None:
    (pipeline,) = [block for block in blocks("README.md") if block.title]
    assert f"rollart run {pipeline.title}" in (ROOT / "Makefile").read_text()
    assert len([line for line in pipeline.text.splitlines() if line.strip()]) <= 24


def test_it_leads_to_every_page_for_users() -> None:
    written = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in written if f"(docs/{name})" not in README} == set()
