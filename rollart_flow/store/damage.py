"""Data files of a run that are missing or torn, told in one line that says how to go on.

The writer syncs a file before it adds it to the log of its table, so that only a broken disk, or
somebody who removed or cut a file, leaves such a one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import polars as pl

from rollart_flow.errors import DataFileNotFoundError, RollartError, StoreError
from rollart_flow.schema import TABLES
from rollart_flow.store import files
from rollart_flow.store.away import repeated_query
from rollart_flow.store.layout import table_uri
from rollart_flow.store.table import DataFile, data_files, find_table

T = TypeVar("T")
_MISSING = "is missing"


@contextmanager
def reading(run: str) -> Iterator[None]:
    """Report damaged data files of a run that is read in this context.

    Raises:
        StoreError: names the first damaged file and the way to repair the run.
    """
    if not files.is_remote(run):
        check_files(run)
    try:
        yield
    except RollartError:
        raise
    except FileNotFoundError as error:
        check_files(run)
        raise DataFileNotFoundError(
            f"files of the run at {run} were merged while they were read; read it again"
        ) from error


def check_files(run: str) -> None:
    """Check that every live data file of a run is there, and whole in a local folder.

    Raises:
        StoreError: names the first damaged file and the way to repair the run.
    """
    for table in TABLES:
        uri = table_uri(run, table)
        found = _damaged(uri, _live_files(run, table))
        if found is not None:  # or it was merged meanwhile, and is not live any more
            found = _damaged(uri, _live_files(run, table))
        if found is not None:
            name, said = found
            kind = DataFileNotFoundError if said == _MISSING else StoreError
            raise kind(
                f"{table}: data file {files.join(uri, name)} {said}; put a copy of it there, or "
                f"remove it and give up its rows: python -c 'from deltalake import DeltaTable; "
                f'DeltaTable("{uri}").repair()\''
            )


def _live_files(run: str, table: str) -> list[DataFile]:
    handle = find_table(run, table)
    return [] if handle is None else data_files(handle)


def _damaged(uri: str, live: list[DataFile]) -> tuple[str, str] | None:
    """Name of the first damaged file of a table, and what it lacks."""
    if files.is_remote(uri):
        there = set(files.names(uri))
        return next(((file.path, _MISSING) for file in live if file.path not in there), None)
    for file in live:
        try:
            size = os.stat(files.join(uri, file.path)).st_size
        except FileNotFoundError:
            return file.path, _MISSING
        if size != file.size_bytes:
            return file.path, f"is torn: it has {size} of {file.size_bytes} bytes"
    return None


def again_if_merged(run: str, read: Callable[[], T]) -> T:
    """Read again if files of the first snapshot were merged and removed meanwhile.

    Raises:
        StoreError: a data file is missing or torn.
    """
    doing = f"read {run}"
    try:
        return repeated_query(doing, read)
    except (FileNotFoundError, pl.exceptions.PanicException):
        with reading(run):
            return repeated_query(doing, read)
