"""Storage of a simulated run: small rows, and commits that take virtual time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rollart_flow.simulation.rows import TupleRows
from rollart_flow.types import Event, Sample


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """A row of `trajectories` without its tokens, or of `steps`."""

    step: int = 0
    """A trained step; 0 for a trajectory."""
    sample: Sample | None = None
    reward: float = 0.0


Rows = tuple[SimulatedRow, ...]


class SimulatedRows(TupleRows[SimulatedRow]):
    """Operations on the rows.

    Args:
        zero_variance_filter: whether a group whose rewards are all equal is refused, since its
            advantages are all 0 (dynamic sampling of DAPO).
    """

    def __init__(self, *, zero_variance_filter: bool) -> None:
        self._filters = zero_variance_filter

    def samples(self, rows: Rows) -> Sequence[Sample]:
        return [row.sample for row in rows if row.sample is not None]

    def newest(self, rows: Rows, column: str) -> int:
        return max(row.step for row in rows)

    def group_refusal(self, members: Sequence[Rows]) -> str | None:
        rewards = {row.reward for rows in members for row in rows}
        return "zero_variance" if self._filters and len(rewards) == 1 else None


class SimulatedCommitter:
    """Takes the time of commits; implements `control.buffer.storage.RowCommitter`.

    Args:
        commit_s: time of committing a trajectory [s]. A row of `steps` takes no time beyond that
            of its training step.
        emit: receives the reported events.
    """

    def __init__(self, commit_s: float, emit: Callable[[Event], None]) -> None:
        self._commit_s = commit_s
        self._emit = emit

    async def commit(self, tables: Mapping[str, Rows], *, at_once: bool = False) -> None:
        if not at_once:
            await asyncio.sleep(self._commit_s)

    def report(self, event: Event, at: datetime | None = None) -> None:
        self._emit(event)
