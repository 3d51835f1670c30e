"""SQL over the tables of a run, which reads them and nothing else.

Polars' SQL also reads files (`read_csv`, `read_parquet`, ...) and has statements that appear to
change tables. Invariant: a text that polars receives has no comment, no dollar-quoted or prefixed
string and no call of a function that reads a file, and it begins with a word that reads.
"""

import re
from collections.abc import Mapping

import polars as pl

from rollart_flow.errors import QueryError
from rollart_flow.store import files

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
_QUOTES = ("string", "quoted")
_READING = ("select", "with", "from", "values", "show", "explain")


def run_sql(query: str, tables: Mapping[str, pl.LazyFrame]) -> pl.DataFrame:
    """Return the rows of a query over tables by name.

    Raises:
        QueryError: the query is wrong, reads something else, or is no query.
    """
    checked = _checked(query)
    try:
        return pl.SQLContext(tables, eager=True).execute(checked)
    except pl.exceptions.PolarsError as error:
        said = files.one_line(error)
        if re.match(r"relation '.*' was not found", said):
            said += f"; there are {', '.join(tables)}"
        raise QueryError(f"query: {said}") from error


def _checked(query: str) -> str:
    """Return the query without its comments, or refuse it."""
    tokens = _tokens(query)
    words = [(kind, text) for kind, text in tokens if kind != "blank"]
    first = next((text for _, text in words if text != "("), "")
    if first.lower() not in _READING:
        wanted = ", ".join(word.upper() for word in _READING)
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
