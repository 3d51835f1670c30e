"""Logprobs of a replay in S3."""

import polars as pl
from polars.testing import assert_frame_equal

from rollart_flow.store.replays import LOGPROBS_SCHEMA, read_replayed, write_replayed


def test_logprobs_of_a_replay_are_replaced_and_read_there(remote: str) -> None:
    run = f"{remote}/mine"
    assert read_replayed(run, "g1-00") is None
    for logprob in (-0.5, -0.25):
        row = (4, logprob, None, None, None)
        written = pl.DataFrame([row], schema=LOGPROBS_SCHEMA, orient="row")
        assert write_replayed(run, "g1-00", written) == f"{run}/replays/g1-00.parquet"
        kept = read_replayed(run, "g1-00")
        assert kept is not None
        assert_frame_equal(kept, written)
