"""Arrow list columns as flat numpy arrays with offsets, read without touching single tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.errors import BatchError, TrainerError

Array = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths: row i is `values[starts[i]:starts[i + 1]]`."""

    values: Array
    """[items]"""
    starts: Array
    """int64 [rows + 1]"""

    @property
    def lengths(self) -> Array:
        """int64 [rows]"""
        return np.diff(self.starts)

    def positions(self, rows: Array) -> tuple[Array, Array]:
        """Positions in `values` of all items of some rows, in the given order of rows.

        Returns:
            (positions [items of these rows], index into `rows` of each item, same shape).
        """
        return spans(self.starts[rows], self.lengths[rows])


def spans(starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Return all places of spans one after another, and the index of the span of each place."""
    before = np.cumsum(lengths) - lengths
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return np.arange(len(owners)) + (starts - before)[owners], owners


def read_lists(table: pa.Table, column: str, value_type: pa.DataType) -> Ragged:
    """Read a column of lists; null rows are empty.

    Raises:
        TrainerError: the column is missing or of another type.
    """
    lists = read_column(table, column, pa.list_(value_type)).combine_chunks()
    return Ragged(_flat(lists), _starts(lists))


def read_structs(table: pa.Table, column: str, field: str, value_type: pa.DataType) -> Ragged:
    """Read one field of a column of lists of structs.

    Raises:
        TrainerError: the column is missing or of another type.
    """
    if column not in table.column_names:
        raise _missing(table, column)
    lists = table[column].combine_chunks()
    values: Array = pc.struct_field(lists.flatten(), field).cast(value_type).to_numpy()
    return Ragged(values, _starts(lists))


def read_nested_lists(
    table: pa.Table, column: str, value_type: pa.DataType
) -> tuple[Array, Ragged]:
    """Read a column of lists of lists: (starts of each row [rows + 1], the inner lists).

    Raises:
        TrainerError: the column is missing or of another type.
    """
    outer = read_column(table, column, pa.list_(pa.list_(value_type))).combine_chunks()
    inner = outer.flatten()
    return _starts(outer), Ragged(_flat(inner), _starts(inner))


def read_column(table: pa.Table, column: str, column_type: pa.DataType) -> pa.ChunkedArray:
    """Read a column, or a field of a struct column as `struct.field`, in the given type.

    Raises:
        TrainerError: the column is missing or of another type.
    """
    name, _, field = column.partition(".")
    if name not in table.column_names:
        raise _missing(table, name)
    try:
        values = table[name]
        return (pc.struct_field(values, field) if field else values).cast(column_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        reason = str(error).splitlines()[0]
        raise TrainerError(
            f"column {column!r} of the batch is not {column_type}: {reason}"
        ) from error


def refuse(names: tuple[str, ...], wrong: Array, rows: Array, what: str) -> None:
    """Raise a BatchError for the first `wrong` entry; `rows` is the row of each entry."""
    if wrong.any():
        raise BatchError(f"trajectory {names[int(rows[int(wrong.argmax())])]} {what}")


def _missing(table: pa.Table, column: str) -> TrainerError:
    columns = ", ".join(table.column_names)
    return TrainerError(f"the batch has no column {column!r}; its columns are {columns}")


def _flat(lists: pa.ListArray) -> Array:
    values: Array = lists.flatten().to_numpy(zero_copy_only=False)
    return values


def _starts(lists: pa.ListArray) -> Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
