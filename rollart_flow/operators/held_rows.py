"""Rows that buffer writers hold, as the buffer and the readers of its batches see them.

A description is a table with the columns from which the buffer decides, and two more that tell
where each row is. Only data files and batches need the rows themselves. The invariant: a row is
held by its writer until the buffer has released it, or until the process of the writer dies; a
committed row that no writer holds is read from the table.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.errors import RollartError, RowsLostError, StoreError
from rollart_flow.operators.arrow_rows import ArrowRows
from rollart_flow.operators.filters import NamedFilter
from rollart_flow.resources import Remote
from rollart_flow.resources.local import wait
from rollart_flow.resources.reasons import failures, reason, unreachable
from rollart_flow.rows import SAMPLE_COLUMNS, from_ipc, to_ipc
from rollart_flow.schema import row_schema
from rollart_flow.store.encoding import Rows
from rollart_flow.store.maintenance import merged
from rollart_flow.store.table import DataFile
from rollart_flow.types import Batch

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.buffer_writer import BufferWriterActor

TOKENS, HELD_BY, HELD_AT = "tokens", "held_by", "held_at"
"""Columns of a description: number of tokens, number of the writer, and place in the writer."""
IN_TABLE = -1
"""Number in place of a writer's, for rows that are read from the table."""


def filter_columns(filters: Sequence[NamedFilter]) -> tuple[str, ...]:
    """Columns of `trajectories` that filters read: all, if a filter selects some by a rule."""
    columns = row_schema("trajectories").names
    expressions = [each.expression.meta for each in filters]
    if any(expression.has_multiple_outputs() for expression in expressions):
        return tuple(columns)
    named = {name for expression in expressions for name in expression.root_names()}
    return tuple(name for name in columns if name in named)


def describe(
    rows: pa.Table, columns: Sequence[str], writer: int = IN_TABLE, first: int = 0
) -> pa.Table:
    """Describe rows that a writer holds at adjacent places from `first` on.

    Args:
        rows: rows of `trajectories`.
        columns: columns to keep besides those from which samples are made.
        writer: number of the writer.
        first: place of the first row.
    """
    count = rows.num_rows
    described = rows.select(list(dict.fromkeys((*SAMPLE_COLUMNS, *columns))))
    described = described.append_column(TOKENS, pc.list_value_length(rows["token_ids"]))
    described = described.append_column(HELD_BY, pa.array([writer] * count, pa.int32()))
    return described.append_column(HELD_AT, pa.array(range(first, first + count), pa.int64()))


class BufferWriters:
    """The writers of a buffer, and where they hold what is pending or in an untrained batch.

    Without writers, every method is without effect.
    """

    def __init__(self, writers: Sequence[Remote["BufferWriterActor"]]) -> None:
        self._writers = writers
        self._turns = cycle(range(len(writers)))
        self._places: dict[str, tuple[int, int]] = {}
        """Writer and place of pending trajectories, by id."""
        self._batches: dict[int, list[tuple[int, int]]] = {}
        """Writers and places of the rows of untrained batches, by step."""

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

    def keep(self, described: pa.Table, held: Set[str]) -> None:
        """Keep the places of trajectories that are pending; release all others that were put.

        Args:
            described: trajectories that were put, committed or not.
            held: ids of all pending trajectories of the buffer.
        """
        gone = []
        for trajectory_id, *place in _places(described):
            if trajectory_id in held and trajectory_id not in self._places:
                self._places[trajectory_id] = (place[0], place[1])
            else:
                gone.append((place[0], place[1]))
        left = [name for name in self._places if name not in held]
        self._release([*gone, *map(self._places.pop, left)])

    def formed(self, batch: Batch) -> None:
        """Keep the rows of a batch until it is trained."""
        if batch.step not in self._batches and self._writers:
            names = [name for name in batch.trajectory_ids if name in self._places]
            self._batches[batch.step] = [self._places.pop(name) for name in names]

    def trained(self, step: int) -> None:
        """Release the rows of the batches up to a step."""
        for each in [each for each in self._batches if each <= step]:
            self._release(self._batches.pop(each))

    def _release(self, places: Sequence[tuple[int, int]]) -> None:
        by_writer: defaultdict[int, list[int]] = defaultdict(list)
        for writer, place in places:
            by_writer[writer].append(place)
        for writer, of_writer in by_writer.items():
            if writer != IN_TABLE:
                self._writers[writer].call.release.start(of_writer)


class HeldRows:
    """Rows that writers hold, for a commit; implements `store.encoding.RowsElsewhere`.

    The rows of one writer become one file. Writers work at the same time.
    """

    def __init__(self, described: pa.Table, writers: Sequence[Remote["BufferWriterActor"]]) -> None:
        self._writers = writers
        self._by_writer: defaultdict[int, list[int]] = defaultdict(list)
        for _, writer, place in _places(described):
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
            lost = isinstance(error, _losses())
            raise (RowsLostError if lost else StoreError)(reason(error)) from error
        return written


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Function that returns the rows of a formed batch as Arrow IPC, wherever they are."""

    buffer: Remote["BufferActor"]
    writers: Sequence[Remote["BufferWriterActor"]]
    uri: str

    def __call__(self, batch: Batch) -> bytes:
        """Ask the buffer for the rows, and gather those that writers hold."""
        data: bytes = self.buffer.call.rows(batch)
        if not self.writers:
            return data
        rows = from_ipc(data)
        return to_ipc(self._gather(rows)) if HELD_BY in rows.column_names else data

    def _gather(self, described: pa.Table) -> pa.Table:
        by_writer: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for trajectory_id, writer, place in _places(described):
            by_writer[writer].append((trajectory_id, place))
        missing = [name for name, _ in by_writer.pop(IN_TABLE, [])]
        calls = {
            writer: self.writers[writer].call.rows.start([place for _, place in held])
            for writer, held in by_writer.items()
        }
        found: dict[str, tuple[pa.Table, int]] = {}
        for writer, call in calls.items():
            names = [name for name, _ in by_writer[writer]]
            try:
                part = from_ipc(wait(call, "BufferWriterActor.rows"))
            except _losses():
                missing += names
            else:
                found |= {name: (part, index) for index, name in enumerate(names)}
        if missing:
            from rollart_flow.operators.recovery import committed_rows

            part = committed_rows(self.uri, missing)
            found |= {name: (part, index) for index, name in enumerate(missing)}
        rows = ArrowRows().pick([found[name] for name in described["trajectory_id"].to_pylist()])
        for name in described.column_names:
            if name not in (*rows.column_names, TOKENS, HELD_BY, HELD_AT):
                rows = rows.append_column(name, described[name])
        return rows


def _losses() -> tuple[type[Exception], ...]:
    """Classes of the errors of calls to a writer that has lost rows."""
    return (RowsLostError, *unreachable())


def _places(described: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Id, writer and place of each row."""
    columns = (described[name].to_pylist() for name in ("trajectory_id", HELD_BY, HELD_AT))
    return zip(*columns, strict=True)
