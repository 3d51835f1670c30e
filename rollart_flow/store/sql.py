"""SQL over the tables of a run, which reads them and nothing else.

Polars' SQL also reads files (`read_csv`, `read_parquet`, ...) and has statements that appear to
change tables. Invariant: a text that polars receives has no comment, no dollar-quoted or prefixed
string and no call of a function that reads a file, and it begins with a word that reads.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import polars as pl

from rollart_flow.errors import QueryError
from rollart_flow.store import files
from rollart_flow.text import one_line

_TOKEN = re.compile(
    r"""
    (?P<comment> --[^\r\n]* | /\*(?:(?!/\*|\*/).)*\*/ )
  | (?P<string> '(?:[^']|'')*' )
  | (?P<quoted> "(?:[^"]|"")*" | `[^`]*` )
  | (?P<word> \w+ )
  | (?P<blank> \s+ )
  | (?P<other> (?!/\*|--)[^'"`$] )
    """,
    re.VERBOSE | re.DOTALL,
)
_READS_FILES = re.compile(r"(read|scan)_\w+", re.IGNORECASE)
_SUBQUERY = re.compile(r"\bselect\b")
_QUOTES = ("string", "quoted")
_READING = ("select", "with", "from", "values", "show", "explain")
_BIGGEST = 2**63 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENDS = ("_", "'", '"', "`")

SqlValue: TypeAlias = int | float | str | bool | None
"""Value of a parameter of a query; None is NULL."""


def run_sql(query: str, tables: Mapping[str, pl.LazyFrame]) -> pl.DataFrame:
    """Return the rows of a query over tables by name.

    Raises:
        QueryError: the query is wrong, reads something else, or is no query.
    """
    with _polars_errors(tables):
        return lazy_sql(query, tables).collect()


def run_sql_page(
    query: str, tables: Mapping[str, pl.LazyFrame], offset: int, rows: int
) -> pl.DataFrame:
    """Return some rows of a query, whose others are not collected where polars can avoid it.

    Args:
        query: the query.
        tables: the tables by name.
        offset: rows that are left out at the beginning.
        rows: most rows.

    Raises:
        QueryError: the query is wrong, reads something else, or is no query.
    """
    with _polars_errors(tables):
        return lazy_sql(query, tables).slice(offset, rows).collect()


def lazy_sql(query: str, tables: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    """Return the plan of a query over tables by name.

    Raises:
        QueryError: the query is wrong, reads something else, or is no query. Some errors show only
            when the plan is collected.
    """
    checked = _checked(query)
    with _polars_errors(tables):
        return pl.SQLContext(tables, eager=False).execute(checked)


def condition(text: str) -> pl.Expr:
    """Return what stands after WHERE in a query, as an expression.

    Raises:
        QueryError: the text is no expression, or one that reads something else than columns.
    """
    checked = _checked(f"SELECT {text}").partition(" ")[2]
    if _SUBQUERY.search(" ".join(name.lower() for name in words(checked))):
        raise QueryError("condition: it has a query; it reads the columns of one table only")
    try:
        return pl.sql_expr(checked)
    except pl.exceptions.PolarsError as error:
        raise QueryError(f"condition {one_line(text, 80)!r}: {files.one_line(error)}") from error


@contextmanager
def _polars_errors(tables: Mapping[str, pl.LazyFrame]) -> Iterator[None]:
    """Report errors of polars as those of the query."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        said = files.one_line(error)
        if re.match(r"relation '.*' was not found", said):
            said += f"; there are {', '.join(tables)}"
        raise QueryError(f"query: {said}") from error


def bound(query: str, values: Mapping[str, SqlValue]) -> str:
    """Return a query with the value of each parameter `:name` in its place, as a literal.

    A colon within quotes, and the cast `::`, are none of a parameter.

    Raises:
        QueryError: a parameter has no value, or one that no literal can express.
    """
    tokens, text, colon = _tokens(query), "", False
    for kind, token in tokens:
        if colon and kind == "word":
            if token not in values:
                raise QueryError(f"query: the parameter :{token} has no value")
            text = text[:-1]
            apart = " " if text[-1:].isalnum() or text.endswith(_ENDS) else ""
            text += apart + literal(values[token])
        else:
            text += token
        colon = token == ":" and not text.endswith("::")
    return text


def parameters(query: str) -> frozenset[str]:
    """Return the names of the parameters of a query."""
    tokens = [("other", ""), *_tokens(query)]
    triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
    return frozenset(
        name
        for (_, before), (_, colon), (kind, name) in triples
        if colon == ":" and before != ":" and kind == "word"
    )


def words(query: str) -> frozenset[str]:
    """Return the names that a query has outside of texts, without their quotes."""
    names = (text for kind, text in _tokens(query) if kind in ("word", "quoted"))
    return frozenset(name.strip('"`') for name in names)


def literal(value: SqlValue) -> str:
    """Return the SQL literal of a value.

    Raises:
        QueryError: no literal expresses it.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise QueryError(f"query: {value!r} is no text of Unicode")
        return "'" + value.replace("'", "''") + "'"
    # An integer is compared first: a large one is no float, and has too many digits for a text.
    if abs(value) > _BIGGEST if isinstance(value, int) else not math.isfinite(value):
        raise QueryError(f"query: {one_line(value, 80)} is no number of SQL")
    text = f"{value!r}::double" if isinstance(value, float) else str(value)
    return f"({text})" if value < 0 else text


def _checked(query: str) -> str:
    """Return the query without its comments, or refuse it."""
    tokens = _tokens(query)
    words = [(kind, text) for kind, text in tokens if kind != "blank"]
    first = next((text for _, text in words if text != "("), "")
    if first.lower() not in _READING:
        wanted = ", ".join(word.upper() for word in _READING)
        if not first:
            raise QueryError(f"query: it is empty; a query begins with one of {wanted}")
        raise QueryError(f"query: it begins with {first!r}; a query begins with one of {wanted}")
    for (kind, text), (_, after) in zip(words, [*words[1:], ("other", "")], strict=True):
        called = after == "(" and kind in ("word", "quoted")
        if called and _READS_FILES.fullmatch(text.strip('"`')):
            raise QueryError(f"query: {text} reads files; a query reads the tables of its run only")
    return "".join(text for _, text in tokens)


def _tokens(query: str) -> list[tuple[str, str]]:
    """Split a query into (kind, text); a comment becomes a blank."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        kind = "" if match is None else match.lastgroup or ""
        joined = kind in _QUOTES and found and found[-1][0] in ("word", *_QUOTES)
        if match is None or joined:
            raise QueryError(f"query: {query[at : at + 10]!r} is not understood; write 'text'")
        found.append(("blank", " ") if kind == "comment" else (kind, match[0]))
        at = match.end()
    return found
