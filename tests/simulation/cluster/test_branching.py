"""Simulated attempts with several branches: as many groups, more rows and tokens to train on."""

from dataclasses import replace

import pytest

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.cluster.branching import row_lengths
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from tests.builders import trajectory, turn
from tests.simulation.scenarios import ONE_POOL

ATTEMPT = trajectory(
    token_ids=(100, 7, 20, 5, 30, 9),
    turns=(turn(start=0, end=2), turn(start=2, end=4), turn(start=4, end=6)),
)


def test_each_further_branch_begins_with_the_prompt_and_has_turns_of_its_own() -> None:
    assert row_lengths(ATTEMPT, 1, 0) == (171,)
    drawn = {row_lengths(ATTEMPT, 8, seed) for seed in range(40)}
    assert drawn == {(171,), (107, 164), (107, 125, 139)}
    assert row_lengths(ATTEMPT, 8, 3) == row_lengths(ATTEMPT, 8, 3)
    assert row_lengths(replace(ATTEMPT, turns=(), token_ids=()), 8, 0) == (0,)


def test_batches_count_episodes_and_train_on_all_rows() -> None:
    runs = {
        most: simulate(replace(ONE_POOL, branches=most), rollart(1), seed=1, steps=2)
        for most in (1, 4)
    }
    for record in runs.values():
        assert {len(b.trajectory_ids) for b in record.batches.values()} == {ONE_POOL.batch_size}
        for batch in record.batches.values():
            assert max(batch.staleness) <= 1
    rows = {
        most: [len(each.lengths) for each in record.attempts.values()]
        for most, record in runs.items()
    }
    assert set(rows[1]) == {1}
    assert max(rows[4]) > 1
    assert runs[4] == simulate(replace(ONE_POOL, branches=4), rollart(1), seed=1, steps=2)
    with pytest.raises(SettingsError, match="branches is 0; at least 1"):
        replace(ONE_POOL, branches=0)
