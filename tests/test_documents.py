"""Every file and module that a document names exists."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import pages

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*pages(), "ARCHITECTURE.md", "CHANGELOG.md"]
GENERATED = (
    "site/",
    "runs/",
    "weights/v",
    "checkpoints/0",
    "policy/",
    "tables/",
    "logprobs/",
    "images/",
    "replays/",
    "logprobs/",
)
"""Folders that commands make."""
TASKS = ("environment/", "tests/", "solution/", "steps/", "/logs/")
"""Paths of a task folder, and of the box that it runs in."""
PATH = re.compile(r"`([a-z_0-9/]+/(?:[a-z_0-9]+\.(?:py|json|md))?)`")


def paths(document: str) -> list[str]:
    """Paths in backticks; within the package they may leave `rollart_flow/` out."""
    return PATH.findall((ROOT / document).read_text())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_that_a_document_names_exist(document: str) -> None:
    missing = [
        path
        for path in paths(document)
        if not path.startswith((*GENERATED, *TASKS))
        and not ((ROOT / path).exists() or (ROOT / "rollart_flow" / path).exists())
    ]
    assert not missing


def test_the_architecture_names_paths() -> None:
    assert len(paths("ARCHITECTURE.md")) > 50


def test_no_text_cites_a_document_that_is_not_here() -> None:
    cited = re.compile(r"\((?:see )?design\b|\bseed 00\d\b|\bdesign\.md\b")
    files = [*(ROOT / "rollart_flow").rglob("*.py"), *(ROOT / page for page in DOCUMENTS)]
    assert not [str(file) for file in files if cited.search(file.read_text())]


def test_the_architecture_names_classes_that_exist() -> None:
    named = set(re.findall(r"`([A-Z]\w+)`", (ROOT / "ARCHITECTURE.md").read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "rollart_flow").rglob("*.py"))
    assert named
    assert named <= set(re.findall(r"^class (\w+)", sources, re.MULTILINE))
