"""The tables of a run as Arrow schemas, read from `schemas/*.json`.

Those files (Delta StructType JSON) are the only place where the type of a column is declared. An
added column comes last, is nullable, and has the next version as `since` in its metadata:
`SCHEMA_VERSION` is the highest of them, and older runs stay readable. For a list that losses may
read, `per` in its metadata names the unit that its items belong to (`trainers.batch.columns`).
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import Schema as DeltaSchema

from rollart_flow.errors import SchemaError
from rollart_flow.text import storable_values

ADDED_TABLES = ("sandboxes", "verdicts", "admissions", "exchanges")
"""Tables that runs of earlier schema versions lack; they read as empty."""
TABLES = (
    "trajectories", "batches", "steps", "weights", "events", "bindings", "evaluations",
    *ADDED_TABLES,
)  # fmt: skip
WRITER_COLUMNS = ("seq", "committed_at")
"""Columns that the writer fills in at commit; uncommitted rows lack them."""


def _schemas_folder() -> Path:
    inside_wheel = Path(__file__).parent / "schemas"
    return inside_wheel if inside_wheel.is_dir() else Path(__file__).parent.parent / "schemas"


def _newest() -> int:
    """The highest `since` of all columns; columns without it are of version 1."""
    since = 1
    for table in TABLES:
        declared = json.loads((_schemas_folder() / f"{table}.json").read_text())
        since = max(since, *(int(f["metadata"].get("since", 1)) for f in declared["fields"]))
    return since


SCHEMA_VERSION = _newest()


@cache
def delta_schema(table: str) -> DeltaSchema:
    """The declared Delta schema of one of `TABLES`.

    Raises:
        SchemaError: the table is unknown.
    """
    if table not in TABLES:
        raise SchemaError(f"no table {table!r}; the tables of a run are {', '.join(TABLES)}")
    return DeltaSchema.from_json((_schemas_folder() / f"{table}.json").read_text())


@cache
def stored_schema(table: str) -> pa.Schema:
    """Arrow schema of a table as stored, with `seq` and `committed_at`."""
    return pa.schema(delta_schema(table).to_arrow())


@cache
def row_schema(table: str) -> pa.Schema:
    """Arrow schema of rows that are not committed yet: without `WRITER_COLUMNS`."""
    return pa.schema([f for f in stored_schema(table) if f.name not in WRITER_COLUMNS])


def to_table(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build an uncommitted Arrow table from mappings with exactly the declared columns.

    Raises:
        SchemaError: a column is missing, unknown or has a value of a wrong type.
    """
    schema = row_schema(table)
    names = schema.names
    known = frozenset(names)
    needed = frozenset(field.name for field in schema if not field.nullable)
    rows = list(rows)
    for row in rows:
        if not known >= row.keys():
            raise SchemaError(f"{table}: unknown column {min(row.keys() - known)!r}")
        if not needed <= row.keys():
            missing = next(name for name in names if name in needed and name not in row)
            raise SchemaError(f"{table}: column {missing!r} is missing")
    columns = [
        to_array(table, field, [row.get(name) for row in rows])
        for name, field in zip(names, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def to_array(table: str, field: pa.Field, values: list[Any]) -> pa.Array:
    """Values of one declared column; text is stored as `text.storable` gives it.

    Raises:
        SchemaError: a value has a wrong type, or is null in a column that is not nullable.
    """
    if pa.types.is_integer(field.type):  # Arrow would truncate a fraction silently
        for value in values:
            if isinstance(value, float | np.floating):
                raise SchemaError(f"{table}.{field.name}: {value} given; expected {field.type}")
    try:
        try:
            array = pa.array(values, type=field.type)
        except UnicodeEncodeError:
            array = pa.array(storable_values(values), type=field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise SchemaError(f"{table}.{field.name}: {error}; expected {field.type}") from error
    if _may_have_null(array, field) and (path := _null_where_none_may_be(array, field)):
        raise SchemaError(f"{table}.{path}: null given, a value expected")
    return array


def check(table: str, rows: pa.Table) -> pa.Table:
    """Return `rows` with the declared column order, or refuse them.

    Args:
        table: one of `TABLES`.
        rows: uncommitted rows. Types must be equal, not merely castable.

    Raises:
        SchemaError: names the first column that is missing, unknown, of a wrong type, or null
            (at any depth) where a value is declared.
    """
    schema = row_schema(table)
    given = dict(zip(rows.column_names, rows.columns, strict=True))
    names = schema.names  # a new list each time
    for name in given:
        if name not in names:
            raise SchemaError(f"{table}: unknown column {name!r}")
    for field in schema:
        if field.name not in given:
            raise SchemaError(f"{table}: column {field.name!r} is missing")
        column = given[field.name]
        if not (column.type.equals(field.type) or _same_type(column.type, field.type)):
            raise SchemaError(
                f"{table}.{field.name}: type {column.type} given, {field.type} expected"
            )
        if _may_have_null(column, field) and (path := _null_where_none_may_be(column, field)):
            raise SchemaError(f"{table}.{path}: null given, a value expected")
    columns = [given[name] for name in names]
    if all(column.type.equals(kind) for column, kind in zip(columns, schema.types, strict=True)):
        return pa.table(columns, schema=schema)
    return rows.select(names).cast(schema)


def _may_have_null(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> bool:
    """Whether a forbidden null is possible, judged by null counts, also of sliced-off items."""
    if column.null_count and not field.nullable:
        return True
    declared = field.type
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if pa.types.is_list(declared) and _may_have_null(chunk.values, declared.value_field):
            return True
        if pa.types.is_struct(declared):
            for index in range(declared.num_fields):
                if _may_have_null(chunk.field(index), declared.field(index)):
                    return True
    return False


def _null_where_none_may_be(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> str | None:
    """Path of the first null that the declared field forbids, at any depth."""
    if column.null_count and not field.nullable:
        return str(field.name)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        for inner, declared in _children(chunk, field.type):
            if path := _null_where_none_may_be(inner, declared):
                return f"{field.name}.{path}"
    return None


def _children(array: pa.Array, declared: pa.DataType) -> list[tuple[pa.Array, pa.Field]]:
    """Children of the lists or structs of an array that are not null themselves."""
    if pa.types.is_list(declared):
        return [(array.flatten(), declared.value_field)]
    if pa.types.is_struct(declared):
        present = array.drop_null() if array.null_count else array
        return [(present.field(i), declared.field(i)) for i in range(declared.num_fields)]
    return []


def _same_type(given: pa.DataType, declared: pa.DataType) -> bool:
    """Whether two types are equal except for list item names and nullability of nested fields."""
    if pa.types.is_list(declared):
        return pa.types.is_list(given) and _same_type(given.value_type, declared.value_type)
    if pa.types.is_struct(declared):
        return (
            pa.types.is_struct(given)
            and [f.name for f in given] == [f.name for f in declared]
            and all(_same_type(g.type, d.type) for g, d in zip(given, declared, strict=True))
        )
    return bool(given.equals(declared))
