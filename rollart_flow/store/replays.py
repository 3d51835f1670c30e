"""Logprobs of trajectories' tokens that a replay computed again, as files beside the tables.

Each trajectory has one Parquet file in the folder `replays` of its run, with one row for each token
that is trained on. A file is replaced as a whole; the tables of the run are not changed.
"""

import re
from hashlib import sha256
from io import BytesIO

import polars as pl
from polars.exceptions import PolarsError

from rollart_flow.errors import StoreError
from rollart_flow.store import files
from rollart_flow.store.layout import replays_uri

LOGPROBS_SCHEMA = pl.Schema({
    "position": pl.Int64, "replayed_logprob": pl.Float64, "step": pl.Int64,
    "trained_version": pl.Int64, "trained_logprob": pl.Float64,
})  # fmt: skip
"""Columns of a file: position in the token chain; logprob under the token's own policy version; the
last step that trained on the token, the version that it started from, and the logprob under that
version (all three null if no step trained on it)."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,150}")


def replayed_uri(run: str, trajectory_id: str) -> str:
    """Return the address of the file of a trajectory, which need not exist.

    An id that cannot be the name of a file is replaced by its SHA-256.
    """
    plain = _PLAIN_NAME.fullmatch(trajectory_id)
    name = trajectory_id if plain else sha256(trajectory_id.encode()).hexdigest()
    return files.join(replays_uri(run), f"{name}.parquet")


def write_replayed(run: str, trajectory_id: str, logprobs: pl.DataFrame) -> str:
    """Write the logprobs of a trajectory, in place of earlier ones, and return their address.

    Args:
        run: address of the run.
        trajectory_id: id of the trajectory.
        logprobs: rows of `LOGPROBS_SCHEMA`.

    Raises:
        StoreError: the file cannot be written; nothing was changed.
    """
    assert logprobs.schema == LOGPROBS_SCHEMA, logprobs.schema
    data = BytesIO()
    logprobs.write_parquet(data)
    uri = replayed_uri(run, trajectory_id)
    files.write(uri, data.getvalue())
    return uri


def read_replayed(run: str, trajectory_id: str) -> pl.DataFrame | None:
    """Return the rows that `write_replayed` wrote, or None if nobody kept any.

    Raises:
        StoreError: the file cannot be read, or has other columns.
    """
    uri = replayed_uri(run, trajectory_id)
    data = files.read(uri)
    if data is None:
        return None
    try:
        logprobs = pl.read_parquet(BytesIO(data))
    except PolarsError as error:
        raise StoreError(f"{uri} is damaged ({files.one_line(error)}); {_AGAIN}") from error
    if logprobs.schema != LOGPROBS_SCHEMA:
        raise StoreError(f"{uri} has other columns than this version writes; {_AGAIN}")
    return logprobs


_AGAIN = "remove it, or write it again with rollart replay --logprobs"
