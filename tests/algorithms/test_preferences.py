"""Losses of preferences against their papers in float64, and batches that they refuse."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from rollart_flow import Policy, buffer, reward, rollout, stored, tasks, train
from rollart_flow.algorithms import dpo, ipo, kto
from rollart_flow.algorithms.parts.mismatched import mismatched
from rollart_flow.envs import Arithmetic
from rollart_flow.errors import PipelineError, TrainerError
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.preferences import (
    CASES,
    GROUPS,
    LABELS,
    PAIRS,
    Sums,
    preference_batch,
    preference_rows,
    prepared,
)


@pytest.mark.parametrize("name", sorted(CASES))
def test_value_and_slope_are_those_of_the_paper(name: str) -> None:
    """With margins from -60 to 60, where a careless logarithm would be infinite."""
    algorithm, formula = CASES[name]
    rows, random = preference_rows(5), np.random.default_rng(1)
    counts = [len(row.actions) for row in rows]
    scales = [0.1, 1.0, 3.0, 10.0, 0.5, 30.0, 0.2, 60.0]
    old, reference, crossed_old, crossed_reference = (
        [(random.normal(size=n) * scale - 1).astype(np.float32)
         for n, scale in zip(counts, scales, strict=True)]
        for _ in range(4)
    )  # fmt: skip
    batch = preference_batch(rows)
    for column, values in (
        ("old_logprobs", old),
        ("reference_logprobs", reference),
        ("mismatched_old_logprobs", crossed_old),
        ("mismatched_reference_logprobs", crossed_reference),
    ):
        batch = batch.append_column(column, pa.array(values, pa.list_(pa.float32())))
    found = algorithm.advantages(batch)

    policy = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in old]
    crossed = [
        a.astype(np.float64).sum() - b.astype(np.float64).sum()
        for a, b in zip(crossed_old, crossed_reference, strict=True)
    ]
    loss = formula(
        Sums(
            torch.stack([each.sum() for each in policy]),
            torch.stack([each.mean() for each in policy]),
            torch.tensor([each.astype(np.float64).sum() for each in reference]),
            torch.tensor(crossed),
        )
    )
    slopes = torch.autograd.grad(loss, policy)
    parts = np.concatenate(found.columns["start_loss"]) * counts
    assert parts.mean() == pytest.approx(float(loss.detach()), rel=1e-6)
    for advantage, slope in zip(found.values, slopes, strict=True):
        assert slope.numpy() == pytest.approx(
            np.full(len(slope), -float(advantage[0]) / len(rows)), rel=1e-5, abs=1e-9
        )


def test_a_policy_that_is_its_reference_has_the_loss_of_indifference() -> None:
    expected = {"dpo": np.log(2), "ipo": 25.0, "kto": 0.5}
    for algorithm in (dpo(), ipo(), kto()):
        trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm, RankSettings())
        made = prepared(trainer, algorithm, 1, preference_batch(preference_rows(1)))
        result = trainer.train_step(1, made.rows)
        assert result.loss == pytest.approx(expected[algorithm.name], rel=1e-5)
        assert made.rows["implicit_reward"].to_pylist() == pytest.approx([0.0] * 8, abs=1e-5)
        signs = [values[0] > 0 for values in made.rows["advantage"].to_pylist()]
        assert signs == LABELS


def test_what_is_stored_of_a_batch_gives_its_step_again_to_the_last_bit() -> None:
    algorithm = dpo()
    one, other = (
        EmbeddedTrainer(CONFIG, initial_weights(), algorithm, RankSettings()) for _ in range(2)
    )
    for step in (1, 2):
        batch = preference_batch(preference_rows(step))
        made = prepared(one, algorithm, step, batch)
        assert {"start_loss", "implicit_reward", "advantage"} <= set(made.stored)
        first = one.train_step(step, made.rows)
        kept = made.rows.select([*_READ, "advantage", "weight", "start_loss"])
        again = other.train_step(step, kept)
        assert (again.loss, again.grad_norm, again.fingerprint) == (
            first.loss, first.grad_norm, first.fingerprint,
        )  # fmt: skip


_READ = ("trajectory_id", "token_ids", "action_mask", "logprobs", "sampling", "kept_token_ids")


def test_a_mismatched_row_begins_as_its_own_and_goes_on_as_one_of_another_group() -> None:
    rows = preference_rows(3)
    batch = preference_batch(rows)
    found = mismatched(batch)
    for own, other, tokens, mask in zip(
        rows, [rows[at] for at in (3, 3, 3, 5, 5, 6, 7, 0)],
        found["token_ids"].to_pylist(), found["action_mask"].to_pylist(), strict=True,
    ):  # fmt: skip
        start = own.actions[0]
        assert tokens[:start] == own.token_ids[:start]
        assert tokens[start:] == other.token_ids[other.actions[0] :]
        assert [at for at, acted in enumerate(mask) if acted] == [
            at - other.actions[0] + start for at in other.actions
        ]
    alone = preference_batch(rows, group_id=["a"] * len(rows))
    assert (
        mismatched(alone)["token_ids"].to_pylist()[0][rows[0].actions[0] :]
        == (rows[1].token_ids[rows[1].actions[0] :])
    )


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("dpo", {"preferred": [None] * 8}, r"trajectory 0 of the batch is neither preferred nor"),
        ("dpo", {"pair": [None] * 8}, r"trajectory 0 of the batch is in no pair; draw batches"),
        ("ipo", {"pair": [*PAIRS[:7], None]}, r"trajectory 7 of the batch is in no pair"),
        ("dpo", {"preferred": [True, True, *LABELS[2:]]}, r"pair 0 .* 2 preferred and 0 rejected"),
        ("dpo", {"pair": [0, 0, 0, 0, *PAIRS[4:]]}, r"pair 0 .* has 2 preferred and 2 rejected"),
        ("kto", {"preferred": [True] * 8}, r"all trajectories .* are preferred; draw rejected"),
        ("kto", {"preferred": [False] * 8}, r"all trajectories .* are rejected; draw preferred"),
        ("kto", {"preferred": [*LABELS[:7], None]}, r"trajectory 7 of the batch is neither"),
    ],
)
def test_a_batch_without_its_preferences_is_refused_in_one_line(
    name: str, changed: dict[str, Sequence[Any]], message: str
) -> None:
    algorithm, _ = CASES[name]
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm, RankSettings())
    batch = preference_batch(preference_rows(1), **changed)
    with pytest.raises(TrainerError, match=message) as caught:
        prepared(trainer, algorithm, 1, batch)
    assert "\n" not in str(caught.value)


def test_an_episode_of_two_rows_is_one_side_of_its_pair() -> None:
    """The second row of the last episode continues another chain with the same label."""
    rows = preference_rows(4)
    longer = [*rows, replace(rows[0])]
    algorithm = dpo()
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm, RankSettings())
    batch = preference_batch(
        longer,
        group_id=[*GROUPS, GROUPS[-1]],
        domain=["a"] * 9,
        policy_version_start=[0] * 9,
        staleness=[0] * 9,
        preferred=[*LABELS, LABELS[-1]],
        pair=[*PAIRS, PAIRS[-1]],
    )
    batch = batch.append_column("episode_id", pa.array([f"e{at}" for at in [*range(8), 7]]))
    batch = batch.append_column("branch", pa.array([0] * 8 + [1], pa.int32()))
    made = prepared(trainer, algorithm, 1, batch)
    result = trainer.train_step(1, made.rows)
    assert result.loss == pytest.approx(np.log(2), rel=1e-5)
    advantages = made.rows["advantage"].to_pylist()
    assert advantages[7] == advantages[8]


def test_a_step_of_several_updates_is_refused_when_the_pipeline_is_built() -> None:
    policy = Policy.tiny()
    batches = stored("run", prefer=pl.col("reward") > 0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"minibatches": 2}, "dpo takes one update a step"),
        ({"epochs": 2}, "set minibatches and epochs to 1"),
        ({"branch_weight": "keep"}, "set branch_weight to split"),
    ]
    for given, message in cases:
        with pytest.raises(PipelineError, match=message):
            train(batches, policy, dpo(), steps=1, **given)


def test_batches_that_state_no_preferences_are_refused_when_the_pipeline_is_built() -> None:
    policy = Policy.tiny()
    scored = reward(rollout(tasks(Arithmetic(), group_size=8), policy))
    for algorithm in (dpo(), kto()):
        with pytest.raises(PipelineError, match="which buffer does not tell apart"):
            train(buffer(scored), policy, algorithm, steps=1)
        with pytest.raises(PipelineError, match="say which"):
            train(stored("run"), policy, algorithm, steps=1)
