"""What a batch has before it is trained on, and what of it is stored."""

from dataclasses import replace

import pyarrow as pa
import pytest

from rollart_flow.algorithms import Decayed, grpo, ppo
from rollart_flow.algorithms.parts.aggregation import Aggregation
from rollart_flow.algorithms.parts.branches import BranchWeight
from rollart_flow.operators.batch_columns import estimate, lag_of, prepare
from rollart_flow.operators.batch_statistics import rewards_by_domain, statistics
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import row_schema
from tests.builders import branched, trajectory, turn


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


def episodes(*rewards: float, branches: int = 3) -> pa.Table:
    """Attempts of one group: the first has several branches, each other one row."""
    unpaid = (turn(reward=0.0),)
    rows = [*branched(*[2] * branches, reward=rewards[0], turns=unpaid)]
    rows += [trajectory("g", n, start=3, reward=r) for n, r in enumerate(rewards[1:], start=1)]
    table = trajectories_table(rows)
    return table.append_column("staleness", pa.array([1] * len(rows), pa.int32()))


def weight_of_first(branch_weight: BranchWeight, aggregation: Aggregation) -> list[float]:
    """Loss weight of the first episode, by row: its factors on all of its action tokens."""
    algorithm = grpo(aggregation=aggregation)
    rows = prepare(algorithm, episodes(1.0, 0.0), 4, refuse, branch_weight).rows
    return [2 * weight for weight in rows["weight"].to_pylist()]


def test_an_episode_counts_once_in_its_group_and_gives_its_advantage_to_all_rows() -> None:
    alone = prepare(grpo(), batch(1.0, 0.0, 0.0, lag=1), 4, refuse).rows["advantage"].to_pylist()
    found = prepare(grpo(), episodes(1.0, 0.0, 0.0), 4, refuse).rows["advantage"].to_pylist()
    assert found == [alone[0]] * 3 + alone[1:]


def test_the_weight_of_an_episode_is_split_among_its_rows_or_kept() -> None:
    # 6 and 2 action tokens: a mean over two episodes of 4 tokens, or over four rows of 2.
    assert weight_of_first("split", "sequence") == pytest.approx([4 / 3, 4 / 3, 4 / 3, 4])
    assert weight_of_first("keep", "sequence") == pytest.approx([2, 2, 2, 2])
    assert weight_of_first("split", "token") == weight_of_first("keep", "token") == [2] * 4


def test_lag_is_that_of_the_oldest_branch() -> None:
    rows = trajectories_table([*branched(3, 1, 2), *branched(4, attempt=1)])
    rows = rows.append_column("staleness", pa.array([1, 1, 1, 0], pa.int32()))
    assert lag_of(rows, 5).to_pylist() == [4, 4, 4, 1]
    prepared = prepare(grpo(), rows, 5, refuse)
    assert prepared.rows["episode_id"].to_pylist() == ["g-00"] * 3 + ["g-01"]


def test_a_branch_that_sampled_nothing_is_not_trained_on() -> None:
    first, second = branched(1, 1)
    empty = replace(
        second, action_mask=(False,) * 5, policy_version_start=None, policy_version_end=None
    )
    rows = trajectories_table([first, empty, trajectory("g", 1, reward=0.0)])
    rows = rows.append_column("staleness", pa.array([1, 1, 1], pa.int32()))
    names = prepare(grpo(), rows, 2, refuse).rows["trajectory_id"].to_pylist()
    assert names == ["g-00", "g-01"]


def test_a_critic_s_advantages_run_through_all_branches_of_an_episode() -> None:
    """The reward is paid at the last token of the last branch, and every token leads to it."""
    algorithm = ppo(lam=1.0)
    found = prepare(algorithm, episodes(1.0, 0.0), 4, recompute_old_logprobs).rows
    assert found["targets"].to_pylist() == [[1.0, 1.0]] * 3 + [[0.0, 0.0]]
    assert found["advantage"].to_pylist() == [[0.5, 0.5]] * 3 + [[-0.5, -0.5]]


def test_statistics_of_a_batch_count_an_episode_once() -> None:
    rows = prepare(grpo(), episodes(1.0, 0.0), 4, refuse).rows
    found = statistics(rows, 5)
    assert (found["reward_mean"], found["lag_mean"], found["trajectories"]) == (0.5, 1.5, 4)
    assert rewards_by_domain(rows) == {"coin": 0.5}
