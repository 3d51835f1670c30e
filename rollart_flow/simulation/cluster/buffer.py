"""Storage of a simulated run: small rows in tuples, and commits that take virtual time."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Generic, TypeVar

from rollart_flow.types import Event, Sample

T = TypeVar("T")


class TupleRows(ABC, Generic[T]):
    """Implements most of `control.buffer.storage.RowFormat` for tuples; no filter refuses a row."""

    @abstractmethod
    def episodes(self, rows: tuple[T, ...]) -> Sequence[Sequence[int]]:
        """Return the positions of the rows of each episode, in order."""

    @abstractmethod
    def samples(self, rows: tuple[T, ...]) -> Sequence[Sample]:
        """Return one sample for each episode, in order."""

    @abstractmethod
    def newest(self, rows: tuple[T, ...], column: str) -> int:
        """Return the largest number of rows of a numbered table."""

    def take(self, rows: tuple[T, ...], places: Sequence[int]) -> tuple[T, ...]:
        return tuple(rows[place] for place in places)

    def pick(self, places: Sequence[tuple[tuple[T, ...], int]]) -> tuple[T, ...]:
        return tuple(rows[place] for rows, place in places)

    def with_staleness(self, rows: tuple[T, ...], staleness: Sequence[int]) -> tuple[T, ...]:
        return rows

    def refusals(self, rows: tuple[T, ...]) -> Sequence[str | None]:
        return [None] * len(self.episodes(rows))

    def rows_of(
        self, table: str, rows: tuple[T, ...], trajectory_ids: Sequence[str]
    ) -> tuple[T, ...]:
        return ()  # simulated attempts bring none

    def group_refusal(self, members: Sequence[tuple[tuple[T, ...], int]]) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class SimulatedRow:
    """A row of `trajectories` without its tokens, or of `steps`."""

    step: int = 0
    """A trained step; 0 for a trajectory."""
    sample: Sample | None = None
    reward: float = 0.0
    branch: int = 0
    """Number of the row within its episode; each row has the sample of the whole episode."""


Rows = tuple[SimulatedRow, ...]


class SimulatedRows(TupleRows[SimulatedRow]):
    """Operations on the rows; with the filter, groups of equal rewards are refused (DAPO)."""

    def __init__(self, *, zero_variance_filter: bool) -> None:
        self._filters = zero_variance_filter

    def episodes(self, rows: Rows) -> list[range]:
        begins = [place for place, row in enumerate(rows) if row.branch == 0]
        return [range(start, end) for start, end in pairwise([*begins, len(rows)])]

    def samples(self, rows: Rows) -> Sequence[Sample]:
        return [row.sample for row in rows if row.branch == 0 and row.sample is not None]

    def newest(self, rows: Rows, column: str) -> int:
        return max(row.step for row in rows)

    def group_refusal(self, members: Sequence[tuple[Rows, int]]) -> str | None:
        rewards = {rows[place].reward for rows, place in members}
        return "zero_variance" if self._filters and len(rewards) == 1 else None


class SimulatedCommitter:
    """Takes the time of commits; implements `control.buffer.storage.RowCommitter`."""

    def __init__(self, commit_s: float, emit: Callable[[Event], None]) -> None:
        self._commit_s = commit_s
        self._emit = emit

    async def commit(self, tables: Mapping[str, Rows], *, at_once: bool = False) -> None:
        if not at_once:
            await asyncio.sleep(self._commit_s)

    def report(self, event: Event, at: datetime | None = None) -> None:
        self._emit(event)
