"""Columns of a stored batch that an algorithm reads, found by their name and declared type.

A new column for a loss takes at most four files:

    schemas/trajectories.json    declares it: name, type, comment, `since` and, for a list, `per`
    types/trajectories.py        a field of `Trajectory` of the same name
    control/rollout/recorder.py  fills the field (or an environment's or engine's own module does)
    algorithms/recipes/NAME.py   a loss that names it in `needs` and reads `tokens.need(name)`

A column of `batches`, which an estimator computes, takes three: schemas/batches.json, the estimator
(`Advantages.columns`) and the loss. Nothing else names the column.

Every loss sees one value for each action token, however the column is stored: a number belongs to
all action tokens of its row; of a list, `per` in the schema names the unit of its items: `token`
(every token of the chain), `action token` or `turn`. Floats arrive as float32, whole numbers as
int64, flags as bool. The invariant: a column that an algorithm reads is complete, or the batch is
refused with one line; other columns may be absent (a format warm start has neither rewards nor
versions).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.schema import row_schema
from rollart_flow.trainers.batch.ragged import Array, Ragged, read_column, read_lists, read_structs

_TABLES = ("trajectories", "batches")
"""Tables whose rows, joined, are a batch."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Optional columns of all rows of a batch, one value for each action token."""

    values: Mapping[str, Array]
    """Columns that the algorithm reads, by name."""
    lags: Array | None
    """int64: trained_version less the version that sampled each token; None unless the batch has
    both for every row, and no row is exempt from the bound."""


def read_columns(
    table: pa.Table, at: Array, actions: Ragged, algorithm: Algorithm | None
) -> Columns:
    """Read the columns that an algorithm needs.

    Args:
        table: rows of `trajectories` joined with `batches`, or a part of their columns.
        at: places of the action tokens among all tokens of the batch [action tokens].
        actions: place of each action token in its row.
        algorithm: algorithm whose columns are read; None reads the lags alone.

    Raises:
        TrainerError: a column that the algorithm needs is undeclared, missing, has a null, is of
            another type, or is not aligned with the others.
    """
    lags = _lags(table, at, actions)
    if algorithm is None:
        return Columns({}, lags)
    if "lags" in algorithm.needs and lags is None:
        raise _missing(algorithm, "token_versions with trained_version")
    values = {}
    for name in sorted(algorithm.columns):
        if not _complete(table, name):
            raise _missing(algorithm, name)
        values[name] = _spread(table, _declared(name, algorithm), at, actions)
    return Columns(values, lags)


def _lags(table: pa.Table, at: Array, actions: Ragged) -> Array | None:
    """Return the number of versions from each action token to the weights of the step's start.

    Raises:
        TrainerError: a column is of another type, or not aligned with the others.
    """
    if not (_complete(table, "token_versions") and _complete(table, "trained_version")):
        return None
    if _has_exempt(table):  # rows of other runs, whose versions mean nothing here
        return None
    versions = _per_token(table, "token_versions", pa.int32(), at, actions)
    trained = read_column(table, "trained_version", pa.int64()).to_numpy()
    lags: Array = np.repeat(trained, actions.lengths) - versions
    return lags


def _has_exempt(table: pa.Table) -> bool:
    """Return whether a row was drawn from what is stored, and has no lag."""
    if "source_seq" not in table.column_names or "lag" not in table.column_names:
        return False
    return bool(pc.any(pc.and_(pc.is_valid(table["source_seq"]), pc.is_null(table["lag"]))).as_py())


def _complete(table: pa.Table, name: str) -> bool:
    """Return whether the table has a column without nulls."""
    return name in table.column_names and not table[name].null_count


def _missing(algorithm: Algorithm, column: str) -> TrainerError:
    return TrainerError(
        f"{algorithm.name} needs {column}, which the batch does not have for every row"
    )


def _declared(name: str, algorithm: Algorithm) -> pa.Field:
    """Return the declaration of a column in the schema of `trajectories` or `batches`.

    Raises:
        TrainerError: neither table declares it.
    """
    for declared in _TABLES:
        schema = row_schema(declared)
        if name in schema.names:
            return schema.field(name)
    raise TrainerError(
        f"{algorithm.name} needs {name!r}, which neither schemas/trajectories.json nor "
        "schemas/batches.json declares"
    )


def _spread(table: pa.Table, field: pa.Field, at: Array, actions: Ragged) -> Array:
    """Return one value of a column for each action token."""
    if not pa.types.is_list(field.type):
        values = read_column(table, field.name, field.type).to_numpy()
        return _numbers(field, np.repeat(values, actions.lengths))
    per = (field.metadata or {}).get(b"per", b"").decode().strip('"')
    readers = {"token": _per_token, "action token": _per_action, "turn": _per_turn}
    if per not in readers:
        raise TrainerError(
            f"column {field.name!r} is a list without `per` in its schema: token, action token or "
            "turn; a loss cannot read it"
        )
    return _numbers(field, readers[per](table, field.name, field.type.value_type, at, actions))


def _numbers(field: pa.Field, values: Array) -> Array:
    """Convert values to the dtype that a loss computes with."""
    kinds = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}
    if values.dtype.kind not in kinds:
        raise TrainerError(f"column {field.name!r} is {field.type}; a loss reads numbers and flags")
    numbers: Array = values.astype(kinds[values.dtype.kind])
    return numbers


def _per_token(table: pa.Table, name: str, kind: pa.DataType, at: Array, actions: Ragged) -> Array:
    lists = read_lists(table, name, kind)
    tokens = read_lists(table, "token_ids", pa.int32())
    _aligned(lists.lengths, tokens.lengths, f"{name} of the batch are not one for each token")
    return lists.values[at]


def _per_action(table: pa.Table, name: str, kind: pa.DataType, at: Array, actions: Ragged) -> Array:
    lists = read_lists(table, name, kind)
    message = f"{name} of the batch are not one for each action token"
    _aligned(lists.lengths, actions.lengths, message)
    return lists.values


def _per_turn(table: pa.Table, name: str, kind: pa.DataType, at: Array, actions: Ragged) -> Array:
    lists = read_lists(table, name, kind)
    ends = read_structs(table, "turns", "end", pa.int64())
    _aligned(lists.lengths, ends.lengths, f"{name} of the batch are not one for each turn")
    tokens = read_lists(table, "token_ids", pa.int32())
    # Turns end in order within a row, and rows follow each other: one search finds them all.
    offsets = np.repeat(tokens.starts[:-1], ends.lengths)
    turn = np.searchsorted(ends.values + offsets, at, side="right")
    if len(at) and turn.max() >= len(lists.values):
        raise TrainerError(f"{name} of the batch: an action token lies outside its turns")
    return lists.values[turn]


def _aligned(found: Array, expected: Array, message: str) -> None:
    if (found != expected).any():
        raise TrainerError(message)
