"""The table of checks of tasks in a store: `<store>/admissions`, for all of its runs.

Rows are only added. A check holds for the digests of its task, image and verifier; of several
checks the newest one counts. Several processes may add rows at once.
"""

import os
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from rollart_flow.schema import check, delta_schema, row_schema, stored_schema
from rollart_flow.store import files
from rollart_flow.store.away import repeated_query
from rollart_flow.store.layout import ADMISSIONS, admissions_uri
from rollart_flow.store.table import StoredTable, delta_errors

Key: TypeAlias = tuple[str, str, str, str]
"""(domain, digests of task, image and verifier) of a check."""

KEY = ("domain", "task_digest", "image_digest", "verifier_digest")
"""Columns of a `Key`."""


class AdmissionTable:
    """The checks of a store; the table is created by the first row."""

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        """Open the table of a store: the given one, else $ROLLART_STORE, else ./runs."""
        self.uri = admissions_uri(store)

    def newest(self, domains: Collection[str] | None = None) -> pl.DataFrame:
        """The newest check by key, in order of time.

        Args:
            domains: names of the domains whose checks are wanted; None for all.

        Raises:
            StoreError: the table cannot be read.
        """
        rows = self._rows()
        if domains is not None:
            rows = rows.filter(pl.col("domain").is_in(list(domains)))
        return newest(rows)

    def add(self, rows: pa.Table) -> None:
        """Add uncommitted rows of `admissions`.

        Raises:
            StoreError: the table cannot be written.
            SchemaError: the rows do not match the table.
        """
        checked = check(ADMISSIONS, rows)
        if not checked.num_rows:
            return
        files.check_writable(self.uri)
        options = files.storage_options(self.uri)
        with delta_errors(f"{ADMISSIONS}: cannot write {self.uri}"):
            handle = repeated_query(
                f"create {self.uri}",
                lambda: DeltaTable.create(
                    self.uri,
                    schema=delta_schema(ADMISSIONS),
                    mode="ignore",
                    name=ADMISSIONS,
                    storage_options=options,
                ),
            )
            stamped = _stamped(checked, after=self._rows().select("seq").max().item() or 0)
            repeated_query(
                f"write {self.uri}", lambda: write_deltalake(handle, stamped, mode="append")
            )

    def _rows(self) -> pl.DataFrame:
        options = files.storage_options(self.uri)
        with delta_errors(f"{ADMISSIONS}: cannot read {self.uri}"):
            if not DeltaTable.is_deltatable(self.uri, storage_options=options):
                return pl.DataFrame(stored_schema(ADMISSIONS).empty_table())

            def read() -> pl.DataFrame:
                handle = StoredTable(self.uri, storage_options=options)
                reading = files.reading_options(self.uri)
                return pl.scan_delta(handle, storage_options=reading).collect()

            return repeated_query(f"read {self.uri}", read)


def newest(rows: pl.DataFrame) -> pl.DataFrame:
    """The newest check by key among rows of `admissions`, in order of time."""
    ordered = rows.sort("checked_at", "seq")
    return ordered.unique(KEY, keep="last", maintain_order=True)


def uncommitted(rows: pl.DataFrame) -> pa.Table:
    """Stored rows as rows for the table `admissions` of a run."""
    schema = row_schema(ADMISSIONS)
    return rows.select(schema.names).to_arrow().cast(schema)


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a row as a mapping."""
    domain, task, image, verifier = (row[name] for name in KEY)
    return domain, task, image, verifier


def _stamped(rows: pa.Table, after: int) -> pa.Table:
    schema = stored_schema(ADMISSIONS)
    at = pa.scalar(datetime.now(UTC), schema.field("committed_at").type)
    columns = dict(zip(rows.column_names, rows.columns, strict=True)) | {
        "seq": pa.array(range(after + 1, after + 1 + rows.num_rows), pa.int64()),
        "committed_at": pa.repeat(at, rows.num_rows),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)
