"""Grouping of the rows that the embedded engine prefills together.

The invariant: every token of every fill is in one group, and padding is a small part of a group.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fill:
    """A span of a row's tokens whose keys and values are to be computed."""

    row: int
    start: int
    count: int
    source: int | None
    """Row filled in the same admission, from which the first `start` tokens are copied afterwards;
    None if nothing is copied.
    """


def groups(fills: list[Fill], most: int) -> Iterator[list[Fill]]:
    """Yield groups of fills, longest first; at most half of a group's tokens are padding unless the
    group is tiny.

    Args:
        fills: non-empty fills.
        most: maximum tokens of one group, including padding; a single larger fill forms its own
        group.
    """
    group: list[Fill] = []
    for fill in sorted(fills, key=lambda fill: -fill.count):
        if group:
            width = group[0].count
            if width * (len(group) + 1) > most or (width > 32 and 2 * fill.count < width):
                yield group
                group = []
        group.append(fill)
    if group:
        yield group
