"""Every file and module that the documents at the top of the repository name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")
PATH = re.compile(r"`([a-z_0-9/]+/(?:[a-z_0-9]+\.(?:py|json|md))?)`")


def paths(document: str) -> list[str]:
    """Paths in backticks; within the package they may leave `rollart_flow/` out."""
    return PATH.findall((ROOT / document).read_text())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_that_a_document_names_exist(document: str) -> None:
    missing = [
        path
        for path in paths(document)
        if not ((ROOT / path).exists() or (ROOT / "rollart_flow" / path).exists())
    ]
    assert not missing


def test_the_architecture_names_paths() -> None:
    assert len(paths("ARCHITECTURE.md")) > 50
