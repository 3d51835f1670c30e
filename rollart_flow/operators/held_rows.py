"""Rows that buffer writers hold, as the buffer sees them.

The invariant: a row is held by its writer until the buffer has released it, or until the process of
the writer dies; a committed row that no writer holds is read from the table.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.errors import RollartError, RowsLostError, StoreError
from rollart_flow.operators.row_descriptions import HELD_BY, IN_TABLE, places_of
from rollart_flow.resources import Remote
from rollart_flow.resources.local import wait
from rollart_flow.resources.reasons import failures, reason, unreachable
from rollart_flow.store.encoding import Rows
from rollart_flow.store.maintenance import merged
from rollart_flow.store.table import DataFile

if TYPE_CHECKING:
    from rollart_flow.operators.buffer_writer import BufferWriterActor


class BufferWriters:
    """The writers of a buffer; there may be none."""

    def __init__(self, writers: Sequence[Remote["BufferWriterActor"]]) -> None:
        self._writers = writers
        self._turns = cycle(range(len(writers)))

    def __len__(self) -> int:
        return len(self._writers)

    def clear(self) -> None:
        """Let all writers remove the rows that an earlier buffer knew."""
        for writer in self._writers:
            writer.call.clear.start()

    def located(self, rows: pa.Table) -> Rows:
        """Return rows as they are, or the rows that writers hold, for their description."""
        return HeldRows(rows, self._writers) if HELD_BY in rows.column_names else rows

    def merge(self, uri: str, table: str, small: Sequence[DataFile]) -> DataFile:
        """Write adjacent files as one, in a writer if one can; see `store.maintenance.merged`."""
        for _ in self._writers[:1]:
            with suppress(*unreachable()):
                new: DataFile = wait(
                    self._writers[next(self._turns)].call.merge.start(uri, table, small),
                    "BufferWriterActor.merge",
                )
                return new
        return merged(uri, table, small)

    def release(self, described: pa.Table) -> None:
        """Let the writers remove rows that they hold; rows without a description are elsewhere."""
        if HELD_BY not in described.column_names:
            return
        by_writer: defaultdict[int, list[int]] = defaultdict(list)
        for _, writer, place in places_of(described):
            by_writer[writer].append(place)
        for writer, places in by_writer.items():
            if writer != IN_TABLE:
                self._writers[writer].call.release.start(places)


class HeldRows:
    """Rows that writers hold, for a commit; implements `store.encoding.RowsElsewhere`.

    The rows of one writer become one file. Writers work at the same time.
    """

    def __init__(self, described: pa.Table, writers: Sequence[Remote["BufferWriterActor"]]) -> None:
        self._writers = writers
        self._by_writer: defaultdict[int, list[int]] = defaultdict(list)
        for _, writer, place in places_of(described):
            self._by_writer[writer].append(place)

    @property
    def num_rows(self) -> int:
        return sum(map(len, self._by_writer.values()))

    def write(self, first_seq: int, clock_us: int) -> list[DataFile]:
        calls = []
        for writer, places in self._by_writer.items():
            calls.append(self._writers[writer].call.write.start(places, first_seq, clock_us))
            first_seq += len(places)
        try:
            written: list[DataFile] = wait(calls, "BufferWriterActor.write")
        except failures(RollartError) as error:
            lost = isinstance(error, (RowsLostError, *unreachable()))
            raise (RowsLostError if lost else StoreError)(reason(error)) from error
        return written
