"""The rows of a formed batch, wherever they are: in the buffer, in its writers or in the table."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.errors import RowsLostError
from rollart_flow.operators.arrow_rows import ArrowRows
from rollart_flow.operators.row_descriptions import (
    HELD_AT,
    HELD_BY,
    IN_TABLE,
    TOKENS,
    places_of,
    without_diffs,
)
from rollart_flow.resources import Remote
from rollart_flow.resources.local import early, wait
from rollart_flow.resources.reasons import unreachable
from rollart_flow.rows import from_ipc, to_ipc
from rollart_flow.types import Batch

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.buffer_writer import BufferWriterActor


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Function that returns the rows of a formed batch as Arrow IPC, wherever they are.

    They have the columns of `trajectories` but `diff`, and `staleness`.
    """

    buffer: Remote["BufferActor"]
    writers: Sequence[Remote["BufferWriterActor"]]
    uri: str

    def ask(self, step: int) -> Callable[[Batch], bytes]:
        """Ask the buffer for the rows of a batch that may not be formed yet.

        Returns:
            Function that returns the rows once the batch is known, as `__call__` does.
        """
        asked = self.buffer.call.next_rows.start(step)

        def rows(batch: Batch) -> bytes:
            # A buffer in another one's place may not know the batch, and answers no more.
            return self._gathered(early(asked) or self.buffer.call.rows(batch))

        return rows

    def __call__(self, batch: Batch) -> bytes:
        """Ask the buffer for the rows of a formed batch, and gather those that writers hold."""
        return self._gathered(self.buffer.call.rows(batch))

    def _gathered(self, data: bytes) -> bytes:
        """Return the rows of the buffer's answer, with those that writers hold in their places."""
        if not self.writers:
            return data
        rows = from_ipc(data)
        return to_ipc(self._gather(rows)) if HELD_BY in rows.column_names else data

    def _gather(self, described: pa.Table) -> pa.Table:
        by_writer: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for trajectory_id, writer, place in places_of(described):
            by_writer[writer].append((trajectory_id, place))
        missing = [name for name, _ in by_writer.pop(IN_TABLE, [])]
        calls = {
            writer: self.writers[writer].call.rows.start([place for _, place in held])
            for writer, held in by_writer.items()
        }
        found: dict[str, tuple[pa.Table, int]] = {}
        losses: tuple[type[Exception], ...] = (RowsLostError, *unreachable())
        for writer, call in calls.items():
            names = [name for name, _ in by_writer[writer]]
            try:
                part = from_ipc(wait(call, "BufferWriterActor.rows"))
            except losses:
                missing += names
            else:
                found |= {name: (part, index) for index, name in enumerate(names)}
        if missing:
            from rollart_flow.operators.recovery import committed_rows

            part = without_diffs(committed_rows(self.uri, missing))
            found |= {name: (part, index) for index, name in enumerate(missing)}
        rows = ArrowRows().pick([found[name] for name in described["trajectory_id"].to_pylist()])
        for name in described.column_names:
            if name not in (*rows.column_names, TOKENS, HELD_BY, HELD_AT):
                rows = rows.append_column(name, described[name])
        return rows
