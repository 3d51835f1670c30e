"""A buffer writer: one of the processes that hold the rows of a buffer and write its data files.

Writers take the work with tokens off the process of the buffer, which decides everything, commits
everything, and sees only descriptions of the rows (`row_descriptions`). A writer has no state of
its own to restore: a process that replaces a lost one starts empty. Committed rows are then read
from the table, and the senders of the others send them again.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import islice

import pyarrow as pa

from rollart_flow.control.loop.waits import waiting
from rollart_flow.errors import RowsLostError
from rollart_flow.operators.arrow_rows import ArrowRows
from rollart_flow.operators.row_descriptions import describe, without_diffs
from rollart_flow.resources import register
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.rows import from_ipc, to_ipc
from rollart_flow.schema import check
from rollart_flow.store.encoding import stamp, write_files
from rollart_flow.store.maintenance import merged
from rollart_flow.store.table import DataFile
from rollart_flow.text import counted

_UNWRITTEN = 4096
"""Number of micro-batches held for a commit. A sender that died leaves one behind; the oldest are
removed, which a sender that lives would notice and repair."""
_TABLE = "trajectories"


class BufferWriterActor:
    """Actor that holds rows of `trajectories` until the buffer releases them.

    Args:
        uri: address of the run.
        number: number of the writer.
        columns: columns that the filters of the buffer read.
    """

    def __init__(self, uri: str, number: int, columns: Sequence[str]) -> None:
        self._uri = uri
        self._number = number
        self._columns = columns
        self._next = time.time_ns()  # so that a process that replaces this one uses other places
        self._rows: dict[int, tuple[pa.Table, int]] = {}
        """Held rows by place, each as a position in the rows that it came with."""
        self._unwritten: dict[int, int] = {}
        """Number of rows by first place, of the micro-batches without a data file."""
        report_waits(uri, f"buffer-writer-{number}")
        freeze_heap()

    @register("rank_zero")
    async def put(self, data: bytes) -> bytes:
        """Hold rows, given as Arrow IPC, and return their description for `BufferActor.put`.

        Raises:
            SchemaError: the rows do not match the table.
        """
        rows = check(_TABLE, from_ipc(data))
        first, self._next = self._next, self._next + rows.num_rows
        self._rows.update({first + each: (rows, each) for each in range(rows.num_rows)})
        self._unwritten[first] = rows.num_rows
        for oldest in tuple(islice(self._unwritten, max(0, len(self._unwritten) - _UNWRITTEN))):
            self._remove(range(oldest, oldest + self._unwritten.pop(oldest)))
        return to_ipc(describe(rows, self._columns, self._number, first))

    @register("rank_zero")
    async def write(self, places: Sequence[int], first_seq: int, clock_us: int) -> DataFile:
        """Write held rows as one durable data file, and return its description.

        Raises:
            RowsLostError: a row is not held; nothing was written.
            StoreError: storage failed.
        """
        rows = self._pick(places)
        for place in places:
            self._unwritten.pop(place, None)
        with waiting(f"write of {counted(rows.num_rows, 'row')}"):
            return await asyncio.to_thread(self._write, rows, first_seq, clock_us)

    def _write(self, rows: pa.Table, first_seq: int, clock_us: int) -> DataFile:
        spans = {_TABLE: (first_seq, first_seq + rows.num_rows - 1)}
        return write_files(self._uri, stamp({_TABLE: rows}, spans, clock_us))[_TABLE]

    @register("rank_zero")
    async def rows(self, places: Sequence[int]) -> bytes:
        """Return held rows, without their diffs, as Arrow IPC.

        Raises:
            RowsLostError: a row is not held.
        """
        return to_ipc(without_diffs(self._pick(places)))

    @register("rank_zero")
    async def release(self, places: Sequence[int]) -> None:
        """Remove rows that the buffer needs no more."""
        self._remove(places)

    @register("rank_zero")
    async def clear(self) -> None:
        """Remove all rows, since the buffer that knew them died."""
        self._rows.clear()
        self._unwritten.clear()

    @register("rank_zero")
    async def merge(self, uri: str, table: str, small: Sequence[DataFile]) -> DataFile:
        """Write the rows of adjacent files of a table as one; see `store.maintenance.merged`."""
        with waiting(f"merge of {len(small)} files of {table}"):
            return await asyncio.to_thread(merged, uri, table, small)

    def _pick(self, places: Sequence[int]) -> pa.Table:
        try:
            return ArrowRows().pick([self._rows[place] for place in places])
        except KeyError as error:
            raise RowsLostError(
                f"buffer writer {self._number} has no row {error}; it was restarted"
            ) from error

    def _remove(self, places: Sequence[int]) -> None:
        for place in places:
            self._rows.pop(place, None)
            self._unwritten.pop(place, None)
