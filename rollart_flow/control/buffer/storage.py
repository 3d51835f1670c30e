"""The protocols through which the buffer handles rows and makes them durable.

Rows are opaque to the control plane: Arrow tables in a run, small records in a simulation.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from rollart_flow.types import Event, Sample

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class RowFormat(Protocol[R]):
    """Operations on rows of one representation. Each is a pure function."""

    def episodes(self, rows: R) -> Sequence[Sequence[int]]:
        """Return the positions of the rows of each episode in rows of `trajectories`, in order.

        The rows of an episode are adjacent, and begin with branch 0.
        """
        ...

    def samples(self, rows: R) -> Sequence[Sample]:
        """Return one sample for each episode in rows of `trajectories`, in order."""
        ...

    def take(self, rows: R, places: Sequence[int]) -> R:
        """Return the rows at these positions, in this order."""
        ...

    def pick(self, places: Sequence[tuple[R, int]]) -> R:
        """Return single rows of several parts, each as (part, position), in this order."""
        ...

    def with_staleness(self, rows: R, staleness: Sequence[int]) -> R:
        """Return the rows with their staleness [versions] added."""
        ...

    def refusals(self, rows: R) -> Sequence[str | None]:
        """Name of the filter that refuses each episode in rows of `trajectories`, or None."""
        ...

    def group_refusal(self, members: Sequence[tuple[R, int]]) -> str | None:
        """Name of the filter that refuses a complete group, or None; its rows as in `pick`."""
        ...

    def rows_of(self, table: str, rows: R, trajectory_ids: Sequence[str]) -> R:
        """Return the rows of a further table that are of these attempts, each once."""
        ...

    def newest(self, rows: R, column: str) -> int:
        """Return the largest value of an integer column."""
        ...


class RowCommitter(Protocol[R_contra]):
    """Makes rows durable, in the order in which they are queued."""

    async def commit(self, tables: Mapping[str, R_contra], *, at_once: bool = False) -> None:
        """Commit rows of one or more tables, all or none; return once they are durable.

        Args:
            tables: rows by table.
            at_once: do not wait for more rows, since a caller is blocked until this commit.

        Raises:
            StoreError: the rows could not be written.
        """
        ...

    def report(self, event: Event, at: datetime | None = None) -> None:
        """Queue an event, which is committed with the next rows, without waiting.

        Args:
            event: event to record.
            at: UTC time of the event; None for the current time.
        """
        ...
