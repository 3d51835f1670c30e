"""Copies the part of a run that predictions read: `python -m tests.simulation.shrink RUN TO`.

Rows, ids and moments stay as they were, durations to ten microseconds. Observations, actions and
logprobs go, which are nearly all of a run's bytes; what is left of a column that may not be null is
empty.
"""

import shutil
import sys
from pathlib import Path

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from rollart_flow.schema import TABLES, delta_schema, stored_schema
from rollart_flow.store import Run, open_run
from rollart_flow.store.layout import table_uri
from rollart_flow.store.marks import COMPLETE

_EMPTIED = {
    "trajectories": ("logprobs", "token_versions"),
    "batches": ("advantage",),
}
_SHORTENED = {"trajectories": ("task", "env_version"), "weights": ("manifest", "checksum")}
_UNREAD = ("evaluations",)
_DIGITS = 5
"""Digits of seconds: ten microseconds."""
_KINDS = ("suspend", "update", "resume", "evict", "abandon")


def shrink(run: Run, folder: Path) -> None:
    """Write the copy into a new folder."""
    folder.mkdir(parents=True)
    shutil.copy(Path(run.uri) / "run.json", folder)
    snapshot = run.snapshot()
    for table in TABLES:
        DeltaTable.create(table_uri(str(folder), table), schema=delta_schema(table))
        rows = _read_by_predictions(table, snapshot.table(table).collect())
        if table in _UNREAD or rows.is_empty():
            continue
        write_deltalake(
            table_uri(str(folder), table),
            rows.to_arrow().select(stored_schema(table).names).cast(stored_schema(table)),
            mode="append",
            writer_properties=WriterProperties(compression="ZSTD", compression_level=19),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(COMPLETE, snapshot.seq)]
            ),
        )


def _read_by_predictions(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.with_columns(
        *(pl.col(name).list.head(0) for name in _EMPTIED.get(table, ())),
        *(pl.lit("").alias(name) for name in _SHORTENED.get(table, ())),
    )
    if table == "events":
        return rows.filter(pl.col("kind").is_in(_KINDS))
    if table == "trajectories":
        silent = pl.element().struct.with_fields(
            pl.lit("").alias("observation"),
            pl.lit("").alias("action"),
            pl.field("generate_s").round(_DIGITS),
            pl.field("step_s").round(_DIGITS),
        )
        rows = rows.filter(split="train").with_columns(pl.col("turns").list.eval(silent))
        return rows.with_columns(
            pl.col("reset_s").round(_DIGITS),
            pl.lit(0).alias("env_seed"),
            pl.col("scored_at").dt.truncate("1s"),
        )
    return rows


if __name__ == "__main__":
    shrink(open_run(sys.argv[1]), Path(sys.argv[2]))
