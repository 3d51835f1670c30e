"""Operations on one Delta table of a run: create, open, check against the declaration."""

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from rollart_flow.errors import SchemaError, StoreError
from rollart_flow.schema import ADDED_TABLES, delta_schema, stored_schema
from rollart_flow.store import files
from rollart_flow.store.away import repeated_query
from rollart_flow.store.layout import log_entry, table_uri
from rollart_flow.store.marks import EPOCH
from rollart_flow.validation import check_file_name

_LOG_ENTRY = re.compile(r"\d{20}\.json")
_LISTINGS = 10
"""Attempts to read the log of a table that is being written."""

LINES = "rollartLines"
"""Key of the information of a commit: the number of lines of its log entry."""

_CONFIGURATION = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.deletedFileRetentionDuration": "interval 1 minutes",
    "delta.dataSkippingStatsColumns": "seq",
}
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class StoredTable(DeltaTable):
    """A Delta table whose files polars finds whatever letters their folder has."""

    def file_uris(self, *filters: Any, **pruning: Any) -> list[str]:
        """Addresses of the live files as polars takes them; deltalake encodes them like URLs."""
        return [unquote(path) for path in super().file_uris(*filters, **pruning)]


@contextmanager
def delta_errors(doing: str) -> Iterator[None]:
    """Convert errors of deltalake and of the file system to a `StoreError` that names `doing`."""
    try:
        with files.converting(doing):
            yield
    except (DeltaError, TableNotFoundError) as error:
        raise StoreError(f"{doing}: {files.one_line(error)}") from error


def creation(table: str) -> list[dict[str, Any]]:
    """The actions of a log entry that makes an empty table of the declared schema, as deltalake
    writes them."""
    metadata: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "name": table,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _schema_string(table),
        "partitionColumns": [],
        "createdTime": int(time.time() * 1000),
        "configuration": _CONFIGURATION,
    }
    return [{"protocol": _PROTOCOL}, {"metaData": metadata}]


@cache
def _schema_string(table: str) -> str:
    return delta_schema(table).to_json()


def open_table(run: str, table: str) -> DeltaTable:
    """The newest state of a table.

    Raises:
        StoreError: the table is missing, or its log cannot be read.
        SchemaError: the table has another schema; the message names the first different column.
    """
    uri = table_uri(run, table)
    with delta_errors(f"{table}: cannot read the Delta log of {uri}"):
        try:
            handle = repeated_query(
                f"read the log of {uri}", lambda: _newest(uri, files.storage_options(uri))
            )
        except DeltaError:
            if (version := _listed_version(uri)) is not None:
                _refuse_torn(table, uri, version)
            raise
    _refuse_foreign(table, uri, handle)
    _refuse_torn(table, uri, handle.version())
    return handle


def find_table(run: str, table: str) -> DeltaTable | None:
    """The newest state of a table; None if it was added after the run was last written.

    Raises:
        StoreError: another table is missing, or a log cannot be read.
        SchemaError: the table has another schema.
    """
    try:
        return open_table(run, table)
    except StoreError as error:
        if table in ADDED_TABLES and is_missing(error):
            return None
        raise


def _refuse_torn(table: str, uri: str, version: int) -> None:
    """Refuse a newest log entry that lost lines; Delta would read it as a smaller commit.

    A put of S3 is whole.
    """
    if files.is_remote(uri):
        return
    path = files.join(uri, log_entry(version))
    entry = files.read(path)
    if entry is None:  # a checkpoint has replaced it
        return
    lines = entry.splitlines()
    with suppress(ValueError, IndexError):
        first, _ = json.loads(lines[0]), json.loads(lines[-1])
        if first.get("commitInfo", {}).get(LINES, len(lines)) == len(lines):
            return
    raise StoreError(
        f"{table}: the newest entry of its log, {path}, is torn; put a copy of it there, or remove "
        "it and give up the rows of that commit"
    )


def _newest(uri: str, options: dict[str, str] | None) -> DeltaTable:
    """Open a table whose writer may add log entries, or replace them by a checkpoint, meanwhile.

    A listing of the log that is made meanwhile may lack an entry before others that it has. Then
    the newest version whose entries are all listed is opened; an entry that is not there either
    when it is looked for by its name is missing, which is an error.
    """
    version: int | None = None
    for _ in range(_LISTINGS - 1):
        try:
            return StoredTable(uri, version=version, storage_options=options)
        except TableNotFoundError:
            raise
        except DeltaError:
            version = _listed_version(uri)
            if version is None:
                raise
    return StoredTable(uri, version=version, storage_options=options)


def _listed_version(uri: str) -> int | None:
    """The newest version without a gap before it in a listing of the log; None for a real gap."""
    names = files.names(files.join(uri, "_delta_log"))
    entries = {int(name[:20]) for name in names if _LOG_ENTRY.fullmatch(name)}
    checkpoints = [int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")]
    version = max(checkpoints, default=min(entries, default=0))
    while version + 1 in entries:
        version += 1
    following = files.join(uri, log_entry(version + 1))
    gap = version < max(entries, default=version) and files.read(following) is None
    return None if gap or not entries else version


def is_missing(error: StoreError) -> bool:
    """Whether `open_table` failed because there is no Delta table."""
    return isinstance(error.__cause__, TableNotFoundError)


def missing_columns(table: str, handle: DeltaTable) -> list[pa.Field]:
    """Declared columns that a table of an older schema version lacks, which are the last ones."""
    there = {field.name for field in handle.schema().fields}
    return [field for field in stored_schema(table) if field.name not in there]


def add_missing_columns(handle: DeltaTable, table: str, epoch: int) -> None:
    """Add the columns that the table of an older schema version lacks; its rows are kept.

    Raises:
        CommitFailedError: another writer has taken over since `epoch`.
    """
    names = {field.name for field in missing_columns(table, handle)}
    fields = [field for field in delta_schema(table).fields if field.name in names]
    properties = CommitProperties(app_transactions=[Transaction(EPOCH, epoch)])
    handle.alter.add_columns(
        fields, commit_properties=properties, post_commithook_properties=_NO_HOOKS
    )


def _refuse_foreign(table: str, uri: str, handle: DeltaTable) -> None:
    """Refuse a table whose columns are not the declared ones, except for missing last columns.

    Schema versions only append columns, so that an older table lacks the last ones.
    """
    found = {field.name: field.type for field in pa.schema(handle.schema().to_arrow())}
    declared = {field.name: field.type for field in stored_schema(table)}
    pairs = list(declared.items())
    later = list(stored_schema(table))[len(found) :]
    if list(found.items()) == pairs[: len(found)] and all(field.nullable for field in later):
        return
    for name, kind in declared.items():
        if name not in found:
            raise SchemaError(f"{table}.{name}: missing in the foreign table at {uri}")
        if found[name] != kind:
            raise SchemaError(
                f"{table}.{name}: type {found[name]} in the foreign table at {uri}, {kind} expected"
            )
    extra = next((name for name in found if name not in declared), next(iter(found)))
    raise SchemaError(f"{table}.{extra}: unexpected in the foreign table at {uri}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table."""

    path: str
    size_bytes: int
    first_seq: int
    last_seq: int
    statistics: str = field(default="", compare=False)
    """Statistics of the Delta log (JSON); empty in a file that was read from the log."""


def data_files(handle: DeltaTable) -> list[DataFile]:
    """All live files, sorted by seq.

    Raises:
        StoreError: a path of the log leads out of the table's folder.
    """
    # `pa.table` would import pandas to see that these are none of its frames.
    actions = pa.RecordBatchReader.from_stream(handle.get_add_actions(flatten=True)).read_all()
    if actions.num_rows == 0:
        return []
    columns = actions.select(["path", "size_bytes", "min.seq", "max.seq"]).to_pydict()
    for path in columns["path"]:
        try:
            check_file_name(path)
        except ValueError as error:
            raise StoreError(f"the log of {handle.table_uri} is damaged: {error}") from error
    return sorted(map(DataFile, *columns.values()), key=lambda file: file.first_seq)


def recorded(handle: DeltaTable, transaction: int) -> dict[str, tuple[int, int]] | None:
    """(first, last) seq by table of the caller's commit of a number, which this table closes."""
    with delta_errors("cannot read the history"):
        for entry in repeated_query("read the history", handle.history):
            note = json.loads(entry.get("rollart", "{}"))
            if note.get("transaction") == transaction:
                return {table: (first, last) for table, (first, last) in note["seqs"].items()}
    return None
