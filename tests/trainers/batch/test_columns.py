"""What losses need beyond logprobs: read from the stored batch, token by token, or refused."""

import numpy as np
import pyarrow as pa
import pytest

from rollart_flow.algorithms import Algorithm, decoupled_ppo, double_sided, grpo, ipa, ppo, topr
from rollart_flow.errors import TrainerError
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.batch.training_batch import read_batch
from tests.trainers.cases import CONFIG, VOCABULARY, completed, initial_weights, make_rows, table


def test_every_token_has_the_reward_lag_and_target_it_was_stored_with() -> None:
    rows = make_rows(7, seed=4)
    stored = completed(rows)
    batch = read_batch(stored)
    order = np.array([5, 0, 3])
    micro = batch.micro_batch(order, VOCABULARY)
    assert micro.rewards is not None
    assert micro.lags is not None
    assert micro.value_targets is not None
    expected = [
        (place, stored["reward"][int(row)].as_py(),
         5 - stored["token_versions"][int(row)][at].as_py(),
         stored["targets"][int(row)][number].as_py())
        for place, row in enumerate(order)
        for number, at in enumerate(rows[row].actions)
    ]  # fmt: skip
    columns = (micro.rows, micro.rewards, micro.lags, micro.value_targets)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert len(set(micro.lags.tolist())) == 3, "versions are mixed within trajectories"


def test_a_chunk_is_a_run_of_action_tokens_between_observations() -> None:
    rows = make_rows(9, seed=1)
    micro = read_batch(table(rows)).micro_batch(np.arange(9), VOCABULARY)
    expected, chunk = [], -1
    for row in rows:
        for at in row.actions:
            chunk += not row.action_mask[at - 1]
            expected.append(chunk)
    assert micro.chunks.tolist() == expected
    assert chunk > 9


def test_columns_are_read_through_slices_and_chunks() -> None:
    whole = completed(make_rows(6, seed=2))
    expected = read_batch(whole).columns
    cut = pa.concat_tables([completed(make_rows(6, seed=2)).slice(0, 2), whole.slice(2)])
    found = read_batch(cut).columns
    for name in ("rewards", "lags", "targets"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    part = read_batch(whole.slice(2)).columns
    assert expected.rewards is not None
    assert part.rewards is not None
    assert np.array_equal(part.rewards, expected.rewards[2:])


@pytest.mark.parametrize(
    ("algorithm", "column", "said"),
    [
        (topr(), "reward", "topr needs reward, "),
        (decoupled_ppo(proximal="interpolated"), "token_versions", "needs token_versions with"),
        (double_sided(max_lag=2), "trained_version", "needs token_versions with trained_version, "),
        (ppo(), "targets", "ppo needs targets, "),
    ],
)
def test_a_batch_that_lacks_what_the_algorithm_reads_is_refused(
    algorithm: Algorithm, column: str, said: str
) -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm)
    whole = completed(make_rows(4, seed=0))
    with pytest.raises(TrainerError, match=said) as caught:
        trainer.train_step(1, whole.drop_columns(column))
    assert "\n" not in str(caught.value)
    place = whole.column_names.index(column)
    nulls = pa.nulls(4, whole.schema.field(column).type)
    with pytest.raises(TrainerError, match=said):
        trainer.train_step(1, whole.set_column(place, column, nulls))
    assert trainer.train_step(1, whole).step == 1


@pytest.mark.parametrize("algorithm", [grpo(), ipa(), grpo(ratio_to="old")], ids=str)
def test_what_it_does_not_read_may_be_absent(algorithm: Algorithm) -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm)
    assert trainer.train_step(1, table(make_rows(4, seed=0))).lags is None


def test_targets_must_be_one_for_each_action_token() -> None:
    whole = completed(make_rows(4, seed=0))
    place = whole.column_names.index("targets")
    short = pa.array([[0.5]] * 4, pa.list_(pa.float32()))
    with pytest.raises(TrainerError, match="targets of the batch are not one for each"):
        read_batch(whole.set_column(place, "targets", short))
