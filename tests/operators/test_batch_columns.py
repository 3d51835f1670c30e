"""What a batch has before it is trained on, and what of it is stored."""

import pyarrow as pa

from rollart_flow.algorithms import Decayed, grpo, ppo
from rollart_flow.operators.batch_columns import estimate, prepare
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import row_schema
from tests.builders import trajectory


def batch(*rewards: float, lag: int = 0) -> pa.Table:
    """Attempts of one group, two action tokens each."""
    rows = [trajectory("g", attempt, reward=reward) for attempt, reward in enumerate(rewards)]
    table = trajectories_table(rows)
    return table.append_column("staleness", pa.array([lag] * len(rewards), pa.int32()))


def refuse(rows: pa.Table) -> pa.Table:
    raise AssertionError("this estimator needs nothing of the trainer")


def recompute_old_logprobs(rows: pa.Table) -> pa.Table:
    """A critic that says 0.5 of every token."""
    values = [[0.5, 0.5]] * rows.num_rows
    return pa.table({"values": pa.array(values, pa.list_(pa.float32()))})


def test_rows_get_advantages_weights_and_the_version_that_the_step_starts_from() -> None:
    found = prepare(grpo(), batch(0.0, 1.0), 4, refuse)
    low, high = (values[0] for values in found.rows["advantage"].to_pylist())
    assert low == -high < 0
    assert found.rows["trained_version"].to_pylist() == [4, 4]
    assert found.rows["lag"].to_pylist() == [4, 4], "version 0 started them"
    assert sum(found.rows["weight"].to_pylist()) > 0
    assert found.zero_variance_groups == 0


def test_groups_without_a_difference_are_counted() -> None:
    assert prepare(grpo(), batch(1.0, 1.0), 0, refuse).zero_variance_groups == 1


def test_a_stale_batch_counts_less_where_the_algorithm_says_so() -> None:
    algorithm = grpo(staleness=Decayed(factor=0.5))
    fresh, stale = (
        prepare(algorithm, batch(0.0, 1.0, lag=lag), 9, refuse).rows["weight"].to_pylist()
        for lag in (0, 3)
    )
    assert 0 < sum(stale) < sum(fresh)


def test_a_critic_is_asked_and_its_targets_are_stored() -> None:
    without = prepare(grpo(), batch(0.0, 1.0), 0, refuse)
    prepared = prepare(ppo(), batch(0.0, 1.0), 0, recompute_old_logprobs)
    assert set(prepared.stored) == {*without.stored, "targets"}
    assert [len(targets) for targets in prepared.rows["targets"].to_pylist()] == [2, 2]


def test_every_stored_column_is_in_the_rows_and_in_the_schema_of_batches() -> None:
    prepared = prepare(ppo(), batch(0.0, 1.0), 0, recompute_old_logprobs)
    assert set(prepared.stored) <= set(prepared.rows.column_names)
    assert set(prepared.stored) <= set(row_schema("batches").names)


def test_advantages_can_be_had_again_from_prepared_rows() -> None:
    """A manifest that was written before a restart is not written again."""
    prepared = prepare(grpo(), batch(0.0, 1.0), 0, refuse)
    again = estimate(grpo(), prepared.rows, refuse)
    assert [v.tolist() for v in again.values] == prepared.rows["advantage"].to_pylist()
