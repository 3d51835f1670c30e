"""Rows of views as JSON for pages: {title, query, language, columns, rows, offset, sort, more}.

A value is a number, a text, a truth value, null, a list or an object. Numbers that a browser cannot
hold are texts: NaN, the infinities and integers beyond 2^53. Times are ISO 8601. A text longer than
`LONGEST` is {"cut": its beginning, "length": characters}; `api/run/NAME/cell` has the whole of it.
"""

import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl

from rollart_flow.views.view import ViewRows

LONGEST = 600
"""Most characters of a text, and items of a list, that are sent unasked."""
_EXACT = 2**53


def encode_rows(rows: ViewRows) -> dict[str, Any]:
    """Return the JSON of the rows of a view."""
    return {
        "title": rows.title,
        "query": rows.query,
        "language": "python" if rows.python else "sql",
        "columns": [
            {"name": name, "type": _kind(kind)} for name, kind in rows.frame.schema.items()
        ],
        "rows": [
            [encode_value(value) if rows.whole else _short(encode_value(value)) for value in row]
            for row in rows.frame.iter_rows()
        ],
        "offset": rows.offset,
        "size": rows.size,
        "sort": rows.sort,
        "more": rows.more,
    }


def encode_value(value: Any) -> Any:
    """Return the JSON of one value."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {str(key): encode_value(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return [encode_value(item) for item in value]


def csv_text(frame: pl.DataFrame) -> str:
    """Return rows as CSV; lists and objects are JSON.

    A spreadsheet runs a text that begins like a formula, so such a text gets an apostrophe.
    """
    columns = [_csv_column(column) for column in frame.iter_columns()]
    return pl.DataFrame(columns).write_csv()


def _csv_column(column: pl.Series) -> pl.Series:
    if column.dtype.is_nested() or column.dtype == pl.Binary:
        texts = [None if v is None else json.dumps(encode_value(v)) for v in column]
        column = pl.Series(column.name, texts, pl.String)
    if column.dtype == pl.Duration:
        return column.dt.total_microseconds() / 1e6
    if column.dtype != pl.String:
        return column
    formula = column.str.contains(r"^[=+\-@\t\r]")
    return (
        column.to_frame()
        .select(
            pl.when(formula)
            .then("'" + pl.col(column.name))
            .otherwise(pl.col(column.name))
            .alias(column.name)
        )
        .to_series()
    )


def _short(value: Any) -> Any:
    if isinstance(value, str | list) and len(value) > LONGEST:
        return {"cut": value[:LONGEST], "length": len(value)}
    return value


def _kind(kind: pl.DataType) -> str:
    if kind.is_numeric() or kind == pl.Duration:  # a duration is sent as its seconds
        return "number"
    if kind.is_temporal():
        return "time"
    if kind == pl.Boolean:
        return "bool"
    return "nested" if kind.is_nested() else "text"
