"""Rows of a query as text: a table, or one block for each row where a table would be too narrow.

Every letter that a terminal would obey is escaped.
"""

import json
import shutil
from typing import TYPE_CHECKING, Any

from rollart_flow.cli.output import escape_controls, plain

if TYPE_CHECKING:
    import polars as pl

_LEAST_WIDTH = 80
_READABLE = 8
"""Width of a column below which its longer values are hard to read."""
_MEASURED = 200
"""Rows whose values are measured."""


def render_rows(rows: "pl.DataFrame") -> str:
    """Return rows as wide as the terminal, or 80 letters in a pipe."""
    width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    fits = _needed(rows) <= width
    return escape_controls(_table(rows, width) if fits else _blocks(rows, width))


def _needed(rows: "pl.DataFrame") -> int:
    """The width of a table whose columns are as wide as their values, or just readable."""
    cells = [rows.columns, *([_text(v) for v in row] for row in rows.head(_MEASURED).iter_rows())]
    widths = (max(len(cell) for cell in column) for column in zip(*cells, strict=True))
    return 1 + sum(min(width, _READABLE) + 3 for width in widths)


def _table(rows: "pl.DataFrame", width: int) -> str:
    import polars as pl

    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        fmt_str_lengths=80,
        tbl_width_chars=width,
        tbl_hide_column_data_types=True,
        tbl_hide_dataframe_shape=True,
    ):
        return str(rows)


def _blocks(rows: "pl.DataFrame", width: int) -> str:
    """One line for each value of each row, cut at the width."""
    names = max(map(len, rows.columns))
    lines = []
    for number, row in enumerate(rows.iter_rows(), 1):
        lines.append(f"row {number} of {rows.height}")
        for name, value in zip(rows.columns, row, strict=True):
            line = f"  {name:<{names}}  {_text(value)}"
            lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
    return "\n".join(lines)


def _text(value: Any) -> str:
    """A value in one line."""
    if value is None or isinstance(value, list | dict):
        return json.dumps(plain(value), ensure_ascii=False)
    return " ".join(str(value).splitlines())
