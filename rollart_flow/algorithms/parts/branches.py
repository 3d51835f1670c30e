"""Episodes of several branches: advantages and weights of an episode, for each of its rows.

Estimators and aggregations see an episode as one trajectory, whose turns are those of its branches
in their order. The invariant: an episode counts once, whatever the number of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rollart_flow.algorithms.base import Advantages

if TYPE_CHECKING:
    import numpy as np

    from rollart_flow.algorithms.base import Rows
    from rollart_flow.episode_rows import Starts

BranchWeight: TypeAlias = Literal["split", "keep"]
"""Weight of an episode of several branches: `split` among its rows, so that all of them together
weigh what one row with all of their action tokens would weigh; or `keep`: each row weighs what an
episode of its own would weigh. The aggregations `token` and `domain` count tokens, for which both
are the same; `sequence` and `constant` count trajectories."""


def in_rows(found: Advantages, starts: Starts, counts: Starts) -> Advantages:
    """Return the advantages of episodes as those of their rows.

    Args:
        found: advantages and further columns of the episodes.
        starts: place of the first row of each episode, and the number of rows.
        counts: number of action tokens of each row.
    """
    columns = {name: _cut(values, starts, counts) for name, values in found.columns.items()}
    values = _cut(found.values, starts, counts)
    return Advantages(values, found.zero_variance_groups, columns)


def _cut(values: Rows, starts: Starts, counts: Starts) -> Rows:
    """Cut the values of each episode at the ends of its rows; a single value is that of each."""
    rows: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    for value, start, end in zip(values, starts[:-1], starts[1:], strict=True):
        if len(value) == 1:
            rows += [value] * int(end - start)
            continue
        at = 0
        for count in counts[start:end].tolist():
            rows.append(value[at : at + count])
            at += count
    return tuple(rows)
