"""Names of the versions and checkpoints of a run that one driver after another drives.

A driver that lost a run may go on writing for a while, such as one that was stopped and continues.
Its folders must not be taken for those of its successor. So a name carries the term of its driver
and the number from which that driver continued, as in `v000031.000002-000030`; the first driver of
a run uses plain numbers. The invariant: a folder is in force if no driver of a later term continued
from a lower number, so that whatever a lost driver adds never is.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import inf

_NAME = re.compile(r"(\D*)(\d{6,})(?:\.(\d{6,})-(\d{6,}))?")


@dataclass(frozen=True, slots=True, order=True)
class FolderTerm:
    """Part of the names of the folders that a driver makes."""

    term: int = 0
    start: int = -1
    """Number of the version from which the driver continued."""

    @property
    def suffix(self) -> str:
        """The end of the names; empty for the first driver of a run."""
        return f".{self.term:06d}-{self.start:06d}" if self.term else ""


FIRST = FolderTerm()


@dataclass(frozen=True, slots=True)
class NumberedFolder:
    """A folder as its name describes it."""

    name: str
    number: int
    term: FolderTerm


def folder_name(prefix: str, number: int, term: FolderTerm = FIRST) -> str:
    """Return the name of the folder with a number that a driver makes."""
    return f"{prefix}{number:06d}{term.suffix}"


def numbered(names: Iterable[str], prefix: str) -> list[NumberedFolder]:
    """Return the folders whose names have a prefix and a number."""
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and match[1] == prefix:
            found.append(NumberedFolder(name, int(match[2]), term_of(name)))
    return found


def term_of(name: str) -> FolderTerm:
    """Return the term of a folder; other folders are of the first one."""
    match = _NAME.fullmatch(name)
    return FIRST if match is None or match[3] is None else FolderTerm(int(match[3]), int(match[4]))


def in_force(folders: Iterable[NumberedFolder]) -> dict[int, str]:
    """Return the name of the folder in force of each number, in ascending order."""
    found: dict[int, str] = {}
    by_term = groupby(sorted(folders, key=_by_term, reverse=True), _by_term)
    last: float = inf
    for term, made in by_term:
        for folder in made:
            if folder.number <= last:
                found.setdefault(folder.number, folder.name)
        last = min(last, term.start) if term.term else last
    return dict(sorted(found.items()))


def _by_term(folder: NumberedFolder) -> FolderTerm:
    return folder.term
