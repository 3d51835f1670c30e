"""Every code block of the documents works, page by page and in order."""

import shutil
from pathlib import Path

import pytest

from rollart_flow.sandbox.registry import SANDBOXES
from rollart_flow.store import Run
from tests.docs.pages import ROOT, blocks, pages
from tests.docs.session import Session

NEEDS = {"docs/sandbox.md": SANDBOXES.load("bubblewrap").problem}
"""What this machine lacks for the blocks of a page, by page."""


@pytest.fixture
def session(finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A reader in a folder with the repository's pipelines and a run called `mine`."""
    shutil.copytree(finished_run.path, tmp_path / "runs" / "mine")
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    monkeypatch.delenv("ROLLART_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return Session(tmp_path)


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)])
def test_blocks_work(session: Session, page: str) -> None:
    if page in NEEDS and (problem := NEEDS[page]()):
        pytest.skip(problem)
    for block in blocks(page):
        session.follow(block)


def test_blocks_are_found() -> None:
    assert sum(len(blocks(page)) for page in pages()) > 60
