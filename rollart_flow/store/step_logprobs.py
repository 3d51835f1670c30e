"""Logprobs that the trainer of a run computed, as one Parquet file for each training step.

`train(keep_logprobs=True)` writes them beside the tables, before the row of the step is committed:
the logprob of each action token under the weights that the step started from. A step that is
trained again, as after a crash, replaces its file.
"""

from io import BytesIO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.exceptions import PolarsError

from rollart_flow.errors import StoreError
from rollart_flow.store import files
from rollart_flow.store.layout import logprobs_uri

SCHEMA = pa.schema({"trajectory_id": pa.string(), "logprobs": pa.list_(pa.float32())})
"""Columns of a file: a trajectory of the batch; the logprobs of its action tokens, in order."""
_TOGETHER = 64
"""Rows that are read together; a reader of one trajectory passes over the others."""


def step_logprobs_uri(run: str, step: int) -> str:
    """Return the address of the file of a step, which need not exist."""
    return files.join(logprobs_uri(run), f"{step:06d}.parquet")


def write_step_logprobs(run: str, step: int, logprobs: pa.Table) -> None:
    """Write the logprobs of a step's batch, in place of earlier ones.

    Args:
        run: address of the run.
        step: number of the step.
        logprobs: rows of `SCHEMA`, one for each trajectory of the batch.

    Raises:
        StoreError: the file cannot be written; nothing was changed.
    """
    data = BytesIO()
    rows = logprobs.cast(SCHEMA).sort_by("trajectory_id")
    pq.write_table(rows, data, compression="zstd", row_group_size=_TOGETHER)
    files.write(step_logprobs_uri(run, step), data.getbuffer())


def read_step_logprobs(run: str, step: int, trajectory_id: str) -> list[float] | None:
    """Return the logprobs of a trajectory's action tokens in a step, or None if none were kept.

    Raises:
        StoreError: the file cannot be read, or has other columns.
    """
    uri = step_logprobs_uri(run, step)
    data = files.read(uri)
    if data is None:
        return None
    try:
        rows = pl.scan_parquet(BytesIO(data)).filter(pl.col("trajectory_id") == trajectory_id)
        found = rows.select("logprobs").collect()["logprobs"].to_list()
    except PolarsError as error:
        raise StoreError(f"{uri} is damaged ({files.one_line(error)}); remove it") from error
    return found[0] if found else None
