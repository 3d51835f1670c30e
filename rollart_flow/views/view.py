"""View: a named query over the tables of a run, and its rows at one moment.

Invariant: values of parameters reach polars as literals only, and the text that is shown with the
rows is the text that gave them.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from rollart_flow.errors import QueryError
from rollart_flow.schema import TABLES
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.sql import SqlValue, bound, parameters, run_sql, run_sql_page, words
from rollart_flow.text import one_line

PAGE_ROWS = 50

Values = Mapping[str, SqlValue]
"""Values of parameters by name."""
ViewFunction = Callable[..., pl.LazyFrame]
"""Function of a snapshot and, by keyword, the values of a view's parameters."""


@dataclass(frozen=True)
class View:
    """A named query.

    Exactly one of `sql` and `function` is given.
    """

    name: str
    """Name of its page, a dot, and its own name, such as "overview.steps"."""
    title: str
    """Title of the table or chart that shows it."""
    sql: str = ""
    """SQL over the tables of a run with parameters such as `:step`; without ORDER BY and LIMIT."""
    parameters: Mapping[str, type[int] | type[float] | type[str]] = field(default_factory=dict)
    """Types of the values that the caller gives, by name."""
    defaults: Mapping[str, SqlValue] = field(default_factory=dict)
    """Values of parameters that the caller may leave out."""
    lookups: Mapping[str, str] = field(default_factory=dict)
    """Queries with one value each, for further parameters; a later one may use those before it."""
    order: str = ""
    """Columns of the result after ORDER BY; a reader's own column is put before them."""
    rows: int = PAGE_ROWS
    """Rows of a page; more than `PAGE_ROWS` for a chart only, whose query bounds them itself."""
    whole: bool = False
    """Whether long texts and lists are sent with the page, and not only when they are opened."""
    function: ViewFunction | None = None
    """Function for rows that SQL cannot express; its source is shown in place of SQL."""

    def __post_init__(self) -> None:
        assert bool(self.sql) != bool(self.function), self.name
        known = {*self.parameters, *self.lookups}
        used = set().union(*map(parameters, (self.sql, *self.lookups.values())))
        assert not self.sql or used == known, f"{self.name}: {used ^ known}"


@dataclass(frozen=True)
class Page:
    """The part of a view's rows that a reader looks at."""

    offset: int = 0
    """Rows before it."""
    sort: str = ""
    """Column of the result to sort by, after a minus sign for a descending order."""
    rows: int | None = None
    """Most rows; those of the view unless given."""


@dataclass(frozen=True)
class ViewRows:
    """Rows of a view, or of a reader's own query."""

    title: str
    query: str
    """SQL or Python that gave the rows, with the values of all parameters."""
    frame: pl.DataFrame
    offset: int
    """Rows before them."""
    size: int
    """Most rows of a page."""
    more: bool
    """Whether rows follow."""
    sort: str = ""
    """Column to sort by, as in `Page.sort`."""
    python: bool = False
    """Whether the query is Python, not SQL."""
    whole: bool = False
    """Whether long texts are to be shown without being opened."""


class ViewReader:
    """Reads views at one moment of a run."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._frames: dict[str, pl.LazyFrame] = {}
        self._found: dict[str, SqlValue] = {}

    def read(self, view: View, values: Values | None = None, page: Page | None = None) -> ViewRows:
        """Return the rows of a view.

        Args:
            view: the view.
            values: values of its parameters; others are passed over.
            page: which rows; the first ones in the view's order unless given.

        Raises:
            QueryError: a parameter has no value or one of another type, or the column to sort by
                is none of the result.
        """
        page = page or Page()
        known = {**view.defaults, **(values or {})}
        given = {name: _typed(name, kind, known) for name, kind in view.parameters.items()}
        if view.function is not None:
            return self._call(view, given, page)
        for name, query in view.lookups.items():
            given[name] = self.value(bound(query, given))
        text = bound(view.sql, given)
        rows = page.rows or view.rows
        order = ", ".join(filter(None, (_order(page.sort), view.order)))
        ordered = f"{text}\nORDER BY {order}" if order else text
        try:
            frame = self._page(f"{ordered}\nLIMIT {rows + 1} OFFSET {page.offset}")
        except QueryError as error:
            if page.sort and _column(page.sort) not in self._page(f"{text}\nLIMIT 0").columns:
                raise _no_column(view, page) from error
            raise
        query = f"{ordered}\nLIMIT {rows} OFFSET {page.offset}"
        return _rows(view, query, frame, page, rows)

    def value(self, query: str) -> SqlValue:
        """Return the one value of a query; None if it has no row.

        Raises:
            QueryError: the query is wrong.
        """
        if query not in self._found:  # views of one page look for the same values
            frame = run_sql(query, self._tables(query))
            self._found[query] = frame.item(0, 0) if frame.height else None
        return self._found[query]

    def sql(self, query: str, page: Page) -> ViewRows:
        """Return rows of a reader's own query, in the order of the query.

        Raises:
            QueryError: the query is wrong, or does not only read the tables.
        """
        rows = page.rows or PAGE_ROWS
        frame = run_sql_page(query, self.snapshot.frames(), page.offset, rows + 1)
        more = frame.height > rows
        return ViewRows("Result", query, frame.head(rows), page.offset, rows, more)

    def _page(self, query: str) -> pl.DataFrame:
        return run_sql(query, self._tables(query))

    def _tables(self, query: str) -> dict[str, pl.LazyFrame]:
        """Return the tables that a query names, whose plans are made once."""
        named = words(query) & set(TABLES)
        for table in named - self._frames.keys():
            self._frames[table] = self.snapshot.table(table)
        return {table: self._frames[table] for table in named}

    def _call(self, view: View, given: Values, page: Page) -> ViewRows:
        assert view.function is not None
        rows = page.rows or view.rows
        lazy = view.function(self.snapshot, **given)
        if page.sort:
            if _column(page.sort) not in lazy.collect_schema().names():
                raise _no_column(view, page)
            descending = page.sort.startswith("-")
            lazy = lazy.sort(
                _column(page.sort), descending=descending, nulls_last=True, maintain_order=True
            )
        frame = lazy.slice(page.offset, rows + 1).collect()
        query = _python(view.function, self.snapshot, given)
        return _rows(view, query, frame, page, rows)


def _rows(view: View, query: str, frame: pl.DataFrame, page: Page, rows: int) -> ViewRows:
    return ViewRows(
        title=view.title,
        query=query,
        frame=frame.head(rows),
        offset=page.offset,
        size=rows,
        more=frame.height > rows,
        sort=page.sort,
        python=view.function is not None,
        whole=view.whole,
    )


def _typed(name: str, kind: type[int] | type[float] | type[str], values: Values | None) -> SqlValue:
    value = (values or {}).get(name)
    if value is None:
        raise QueryError(f"the parameter {name} has no value")
    try:
        return kind(value)
    except ValueError:
        said = f"the parameter {name} is {one_line(value, 80)!r}, which is no {kind.__name__}"
        raise QueryError(said) from None


def _column(sort: str) -> str:
    return sort.removeprefix("-")


def _order(sort: str) -> str:
    if not sort:
        return ""
    quoted = '"' + _column(sort).replace('"', '""') + '"'
    return f"{quoted}{' DESC' if sort.startswith('-') else ''} NULLS LAST"


def _no_column(view: View, page: Page) -> QueryError:
    return QueryError(f"{view.name} has no column {_column(page.sort)!r} to sort by")


def _python(function: ViewFunction, snapshot: Snapshot, given: Values) -> str:
    """Return Python that gives the rows of a function again."""
    run = f"open_run({snapshot.run!r}).as_of(seq={snapshot.seq})"
    arguments = "".join(f", {name}={value!r}" for name, value in given.items())
    return (
        f"from {function.__module__} import {function.__name__}\n"
        "from rollart_flow.store import open_run\n\n"
        f"{function.__name__}({run}.snapshot(){arguments}).collect()\n\n"
        f"# {function.__module__} has\n{inspect.getsource(function)}"
    )
