"""What the embedded engine computes of prompts: which rows are filled together.

The invariant: every token of every fill is in one group, and little of a group is padding.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fill:
    """Tokens of a row whose keys and values are to be computed."""

    row: int
    start: int
    count: int
    source: int | None
    """Row that fills in the same admission, to copy the first `start` tokens from afterwards."""


def groups(fills: list[Fill], most: int) -> Iterator[list[Fill]]:
    """Longest first; at most half of a group's tokens are padding, where it is not tiny.

    Args:
        fills: that are not empty.
        most: tokens of one group, padding included, unless one fill has more.
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
