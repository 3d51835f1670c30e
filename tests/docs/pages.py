"""Code blocks of the documents: README.md, CONTRIBUTING.md and the pages in docs/.

A fence may have a title: a file name (the reader saves the block under it) or "Output" (the block
is the output of the one before). A block whose first line is `# needs: SOMETHING` cannot run on a
machine for tests; it is checked without being run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")
OUTPUT = "Output"
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"# needs: (.+)\n")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    """Line of its fence, from 1."""
    language: str
    title: str
    text: str

    @property
    def needs(self) -> str | None:
        """The resource without which the block cannot run; None if it runs anywhere."""
        found = _NEEDS.match(self.text)
        return found and found.group(1)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Paths of all documents with code, relative to the repository."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    return [*DOCUMENTS, *(str(path.relative_to(ROOT)) for path in written)]


def blocks(page: str) -> list[Block]:
    """Blocks of a page in order."""
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2] or "", found[3])
        for found in _FENCE.finditer(text)
    ]
