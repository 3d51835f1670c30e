"""Arguments of one call for many workers, and many results as one."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.errors import SettingsError
from rollart_flow.resources.dispatch import MODES, join, split


def test_execute_all_gives_everybody_the_same_and_returns_a_list() -> None:
    mode = MODES["execute_all"]
    assert mode.dispatch(3, (1,), {"a": 2}) == [((1,), {"a": 2})] * 3
    assert mode.collect([1, 2, 3]) == [1, 2, 3]


def test_rank_zero_calls_the_first_alone_and_returns_its_result() -> None:
    mode = MODES["rank_zero"]
    assert mode.dispatch(3, (1,), {}) == [((1,), {})]
    assert mode.collect(["first"]) == "first"


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 8))
def test_what_is_split_and_joined_is_what_it_was(rows: list[int], ranks: int) -> None:
    if len(rows) < ranks:
        with pytest.raises(SettingsError, match="pass at least one each"):
            split(ranks, (rows,), {})
        return
    parts = split(ranks, (rows,), {"again": tuple(rows)})
    assert join([args[0] for args, _ in parts]) == rows
    assert join([kwargs["again"] for _, kwargs in parts]) == tuple(rows)
    sizes = [len(args[0]) for args, _ in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "value",
    [
        pa.table({"x": [1, 2, 3]}),
        pa.record_batch({"x": [1, 2, 3]}),
        np.arange(6).reshape(3, 2),
        torch.arange(6).reshape(3, 2),
        {"ids": torch.arange(3), "rows": [[1], [2], [3]]},
    ],
    ids=["table", "record batch", "array", "tensor", "mapping"],
)
def test_tables_arrays_and_tensors_are_cut_along_their_first_axis(value: Any) -> None:
    parts = split(2, (value,), {})
    joined = join([args[0] for args, _ in parts])
    assert type(joined) is type(value)
    assert repr(joined) == repr(value) if not isinstance(value, pa.Table) else joined.equals(value)


def test_none_of_all_ranks_is_none() -> None:
    assert join([None, None]) is None


def test_what_cannot_be_split_says_so() -> None:
    with pytest.raises(SettingsError, match=r"cannot cut float 0\.1; pass lists"):
        split(2, ([1, 2],), {"rate": 0.1})
    with pytest.raises(SettingsError, match=r"one length, but have \[2, 3\]"):
        split(2, ([1, 2], [1, 2, 3]), {})
    with pytest.raises(SettingsError, match="one length, but have none"):
        split(2, (), {})


def test_what_cannot_be_joined_says_so() -> None:
    with pytest.raises(SettingsError, match="cannot join results of type float"):
        join([0.5, 0.25])
    with pytest.raises(SettingsError, match="cannot join results of type float64"):
        join([np.float64(0.5)])
