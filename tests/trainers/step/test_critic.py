"""The critic: its values, its loss against a float64 reference, its state, its settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import Critic, grpo, ppo
from rollart_flow.algorithms.advantages import GAE, VTrace
from rollart_flow.algorithms.base import Estimator
from rollart_flow.errors import TrainerError
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.checkpoint.checkpoint import read_checkpoint
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.weights import fingerprint
from tests.trainers.cases import (
    CONFIG,
    completed,
    initial_weights,
    make_rows,
    reference_logprobs,
    reference_model,
)
from tests.trainers.conformance import CUT, bits

WHOLE = replace(CUT, minibatches=1, epochs=1)


def start(critic: Critic | None = None, settings: RankSettings = CUT) -> EmbeddedTrainer:
    return EmbeddedTrainer(CONFIG, initial_weights(), ppo(critic=critic or Critic()), settings)


def batch_of(step: int) -> pa.Table:
    return completed(make_rows(10, seed=step), seed=step)


def head_of(trainer: EmbeddedTrainer, folder: Path) -> dict[str, torch.Tensor]:
    """Parameters of its critic, as a checkpoint has them."""
    trainer.save(folder / "saved")
    state = read_checkpoint(folder / "saved").state
    return {name: state[f"{name}/value"] for name in ("value_head.weight", "value_head.bias")}


def test_the_loss_is_that_of_the_formula_clipped_and_not() -> None:
    generator = torch.Generator().manual_seed(0)
    values, targets, old = torch.randn(3, 200, generator=generator, dtype=torch.float64)
    for clip in (0.0, 0.3):
        expected = []
        for v, t, o in zip(values.tolist(), targets.tolist(), old.tolist(), strict=True):
            held = o + max(-clip, min(clip, v - o))
            worst = (v - t) ** 2 if clip == 0 else max((v - t) ** 2, (held - t) ** 2)
            expected.append(worst / 2)
        found = Critic(clip=clip).loss(values, targets, old)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_a_fresh_critic_says_nothing_and_learns_its_targets() -> None:
    trainer = start(Critic(lr_scale=3.0), replace(WHOLE, epochs=4))
    rows = batch_of(1)
    assert not any(
        trainer.recompute_old_logprobs(rows)["values"].combine_chunks().flatten().to_pylist()
    )
    losses = [trainer.train_step(step, rows).value_loss for step in range(1, 16)]
    squares = np.square(rows["targets"].combine_chunks().flatten().to_numpy())
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[0] == pytest.approx(float(squares.mean()) / 2, rel=0.2)
    assert losses[-1] < 0.6 * losses[0]


def test_values_and_logprobs_are_those_of_the_hidden_state_before_each_token(
    tmp_path: Path,
) -> None:
    trainer = start(Critic(coefficient=2.0))
    for step in (1, 2):
        trainer.train_step(step, batch_of(step))
    rows = make_rows(6, seed=9)
    found = trainer.recompute_old_logprobs(completed(rows))
    assert found.column_names == ["old_logprobs", "values"]
    model = reference_model(trainer.weights())
    hidden: list[torch.Tensor] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    head = {name: tensor.double() for name, tensor in head_of(trainer, tmp_path).items()}
    for at, row in enumerate(rows):
        logprobs = reference_logprobs(model, row).detach()
        states = hidden.pop()[0]
        values = states @ head["value_head.weight"][0] + head["value_head.bias"]
        before = [place - 1 for place in row.actions]
        assert found["values"][at].as_py() == pytest.approx(values[before].tolist(), abs=1e-4)
        assert found["old_logprobs"][at].as_py() == pytest.approx(logprobs.tolist(), abs=1e-4)


def test_assessing_changes_nothing() -> None:
    one, other = start(), start()
    one.recompute_old_logprobs(batch_of(1))
    assert bits(one.train_step(1, batch_of(1))) == bits(other.train_step(1, batch_of(1)))


def test_without_a_critic_only_logprobs_are_assessed() -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT)
    assert trainer.recompute_old_logprobs(batch_of(1)).column_names == ["old_logprobs"]
    assert trainer.train_step(1, batch_of(1)).value_loss is None


def test_it_is_part_of_what_is_compared_and_not_of_what_is_published(tmp_path: Path) -> None:
    trainer = start()
    result = trainer.train_step(1, batch_of(1))
    assert trainer.weights().keys() == initial_weights().keys()
    head = head_of(trainer, tmp_path)
    assert result.fingerprint == fingerprint({**trainer.weights(), **head})
    assert result.fingerprint != fingerprint(trainer.weights())


def test_it_goes_on_from_a_checkpoint_as_if_never_stopped(tmp_path: Path) -> None:
    trainer = start()
    for step in (1, 2):
        trainer.train_step(step, batch_of(step))
    trainer.save(tmp_path / "checkpoint")
    expected = [bits(trainer.train_step(step, batch_of(step))) for step in (3, 4)]
    again = start()
    again.load(tmp_path / "checkpoint")
    assert [bits(again.train_step(step, batch_of(step))) for step in (3, 4)] == expected


def test_a_step_that_fails_leaves_no_trace_in_it() -> None:
    trainer, healthy = start(), start()
    sick = batch_of(1)
    place = sick.column_names.index("targets")
    targets = sick["targets"].to_pylist()
    targets[4] = [float("inf")] * len(targets[4])
    with pytest.raises(TrainerError, match="not finite"):
        trainer.train_step(
            1, sick.set_column(place, "targets", pa.array(targets, pa.list_(pa.float32())))
        )
    assert bits(trainer.train_step(1, batch_of(1))) == bits(healthy.train_step(1, batch_of(1)))


def test_a_checkpoint_without_one_is_refused(tmp_path: Path) -> None:
    EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT).save(tmp_path / "checkpoint")
    with pytest.raises(TrainerError, match=r"has no critic: value_head\.weight is not in it"):
        start().load(tmp_path / "checkpoint")


@pytest.mark.parametrize("change", [{"coefficient": 5.0}, {"clip": 0.01}, {"lr_scale": 9.0}])
def test_every_setting_of_it_changes_the_weights(change: dict[str, Any]) -> None:
    def last(critic: Critic) -> str:
        trainer = start(critic)
        return [trainer.train_step(s, batch_of(s)).fingerprint for s in (1, 2)][-1]

    assert last(Critic()) != last(replace(Critic(), **change))


def test_how_the_batch_is_cut_changes_its_loss_by_rounding_only() -> None:
    results = [
        start(settings=replace(WHOLE, micro_batch_tokens=tokens)).train_step(1, batch_of(1))
        for tokens in (50, 5000)
    ]
    assert results[0].value_loss == pytest.approx(results[1].value_loss, rel=1e-5)
    assert results[0].grad_norm == pytest.approx(results[1].grad_norm, rel=1e-4)


@pytest.mark.parametrize("estimator", [GAE(), VTrace()], ids=str)
def test_what_is_assessed_is_what_estimators_read(estimator: Estimator) -> None:
    trainer = start()
    rows = make_rows(3, seed=5)
    table = completed(rows)
    found = trainer.recompute_old_logprobs(table)
    for name in found.column_names:
        table = table.append_column(name, found[name])
    turns = [
        [{"start": 0, "end": len(r.token_ids), "reward": 1.0, "observation": ""}] for r in rows
    ]
    table = table.append_column("turns", pa.array(turns)).append_column(
        "group_id", pa.array(["a", "a", "b"])
    )
    made = estimator(table)
    assert "targets" in made.columns
    assert [len(each) for each in made.columns["targets"]] == [len(row.actions) for row in rows]
