"""Logprobs of the trainer's steps: written as a whole, read by trajectory."""

from pathlib import Path

import pyarrow as pa
import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store.step_logprobs import (
    read_step_logprobs,
    step_logprobs_uri,
    write_step_logprobs,
)


def kept(**lists: list[float]) -> pa.Table:
    return pa.table({"trajectory_id": [*lists], "logprobs": [*lists.values()]})


def test_the_logprobs_of_a_trajectory_are_read_alone(tmp_path: Path) -> None:
    run = str(tmp_path)
    lists = {f"t{number:03d}": [-0.5 * number, -1.0] for number in range(200)}
    write_step_logprobs(run, 3, kept(**dict(reversed(lists.items()))))
    assert read_step_logprobs(run, 3, "t117") == lists["t117"]
    assert read_step_logprobs(run, 3, "another") is None
    assert read_step_logprobs(run, 4, "t117") is None


def test_a_step_that_is_trained_again_replaces_its_file(tmp_path: Path) -> None:
    run = str(tmp_path)
    write_step_logprobs(run, 1, kept(a=[-1.0], b=[-2.0]))
    write_step_logprobs(run, 1, kept(a=[-3.0]))
    assert read_step_logprobs(run, 1, "a") == [-3.0]
    assert read_step_logprobs(run, 1, "b") is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_step_logprobs(str(tmp_path), 1, kept(a=[-1.0]))
    Path(step_logprobs_uri(str(tmp_path), 1)).write_bytes(b"PAR1 cut off")
    with pytest.raises(StoreError, match=r"000001.parquet is damaged"):
        read_step_logprobs(str(tmp_path), 1, "a")
