"""Rows in tuples, for a `BufferService` whose storage is simulated."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from rollart_flow.types import Sample

T = TypeVar("T")


class TupleRows(Generic[T]):
    """Implements most of `control.buffer.storage.RowFormat` for tuples; no filter refuses a row."""

    def samples(self, rows: tuple[T, ...]) -> Sequence[Sample]:
        """Return one sample for each row of `trajectories`, in order."""
        raise NotImplementedError

    def newest(self, rows: tuple[T, ...], column: str) -> int:
        """Return the largest number of rows of a numbered table."""
        raise NotImplementedError

    def take(self, rows: tuple[T, ...], places: Sequence[int]) -> tuple[T, ...]:
        return tuple(rows[place] for place in places)

    def join(self, parts: Sequence[tuple[T, ...]]) -> tuple[T, ...]:
        return tuple(row for part in parts for row in part)

    def with_staleness(self, rows: tuple[T, ...], staleness: Sequence[int]) -> tuple[T, ...]:
        return rows

    def refusals(self, rows: tuple[T, ...]) -> Sequence[str | None]:
        return [None] * len(rows)

    def group_refusal(self, members: Sequence[tuple[T, ...]]) -> str | None:
        return None
