"""The work of batches of several sizes, from rows that a run trained on."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from rollart_flow.simulation.stored.training_work import (
    Cut,
    TrainedRows,
    read_rows,
    read_work,
    work_curve,
)
from rollart_flow.store import open_run
from rollart_flow.trainers.batch.passes import FIXED_COST_TOKENS, GROUP_COST_TOKENS
from tests.runs import small_run

DATA = Path(__file__).parents[1] / "data" / "two-domains"


def rows(chains: list[list[int]]) -> TrainedRows:
    lengths = np.array([len(chain) for chain in chains])
    return TrainedRows(np.concatenate(chains), np.cumsum(lengths) - lengths, lengths, lengths)


def distinct(count: int) -> TrainedRows:
    """Rows of ten tokens of which no two begin alike."""
    return rows([[row, *range(9)] for row in range(count)])


def test_each_update_has_a_fixed_cost_that_no_batch_avoids() -> None:
    """All tokens are computed twice, by layers and by attention, in each of two epochs."""
    curve = work_curve(distinct(64), Cut(minibatches=4, epochs=2, micro_batch_tokens=1000), 16)
    for count in (4, 8, 16, 32, 64):
        fixed = 4 * (FIXED_COST_TOKENS + GROUP_COST_TOKENS)
        assert curve.of(10 * count) == pytest.approx(2 * (fixed + 2 * 10 * count))


def test_a_minibatch_that_is_too_large_for_one_pass_has_several_fixed_costs() -> None:
    whole, cut = (work_curve(distinct(64), Cut(1, 1, most), 16).of(160) for most in (160, 40))
    assert cut - whole == pytest.approx(3 * (FIXED_COST_TOKENS + GROUP_COST_TOKENS))


def test_prefixes_that_attempts_share_make_larger_batches_cheaper_for_each_token() -> None:
    alike = rows([[0] * 9 + [row] for row in range(64)])
    cut = Cut(minibatches=1, epochs=1, micro_batch_tokens=10_000)
    (small, low), *_, (large, high) = work_curve(alike, cut, 16).points
    apart = work_curve(distinct(64), cut, 16)
    assert (high - low) / (large - small) < 0.7 * (apart.of(large) - apart.of(small)) / (
        large - small
    )


def test_the_rows_of_a_run_are_read_in_the_order_of_its_batches(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    found = read_rows(run.snapshot(), [2, 4])
    batches = run.batches.filter(pl.col("step").is_in([2, 4])).sort("step", "position").collect()
    stored = run.trajectories.select("trajectory_id", "token_ids", "action_mask").collect()
    of = {name: (ids, mask) for name, ids, mask in stored.iter_rows()}
    expected = [of[name] for name in batches["trajectory_id"]]
    assert found.tokens.tolist() == [token for ids, _ in expected for token in ids]
    assert found.lengths.tolist() == [len(ids) for ids, _ in expected]
    assert all(
        mask[used] and not any(mask[used + 1 :])
        for used, (_, mask) in zip(found.used.tolist(), expected, strict=True)
    )


def test_a_trainer_that_packed_no_rows_has_no_known_work() -> None:
    run = open_run(DATA)
    assert read_work(run.snapshot(), run.info.settings["nodes"]["train"]) is None
