"""What every trainer of several ranks promises beside what all trainers do: the embedded trainer's
numbers, and checkpoints that any number of ranks takes.

A backend's test subclasses `RankedConformance` with its settings, and inherits every test; another
layout of the same backend, `RankedParity`.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import grpo, ppo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.batch.training_batch import read_batch
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.core_trainer import CoreTrainer
from rollart_flow.trainers.step.kernels import pinned
from rollart_flow.trainers.step.update import Tally
from rollart_flow.types import Sampling
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, completed, initial_weights, make_rows, table
from tests.trainers.conformance import CUT, TrainerConformance, batch_of, bits
from tests.trainers.gang import Gang, GangTrainer
from tests.trainers.preferences import CASES, preference_batch, preference_rows, train_on

WHOLE = RankSettings(optimizer=adamw(1e-3, clip_norm=0), micro_batch_tokens=100)
COMPARED = (
    "loss", "grad_norm", "ratio_mean", "ratio_max", "clip_fraction", "kl", "entropy",
    "value_loss", "mismatch_kl", "mismatch_ratio_max", "ess",
)  # fmt: skip
ALGORITHMS = [
    grpo(),
    grpo(kl=0.1, entropy=0.1),
    ppo(reference=1, kl=0.05),
]


def full_batch(step: int) -> pa.Table:
    """A batch with every column that any algorithm reads."""
    return completed(make_rows(10, seed=step), seed=step)


def gradient(
    trainer: CoreTrainer, batch: pa.Table, packed: bool = True
) -> tuple[float, dict[str, Any]]:
    """Loss and gradient of a batch, whole, under Hugging Face names. Called in every rank."""
    rows, state = read_batch(batch, trainer.algorithm, packed=packed), trainer._train_state
    tally = Tally()
    with pinned(1):
        trainer._updater(rows).accumulate(rows, np.arange(rows.rows), 1.0, tally)
        state.clip()
    tally.all_reduce(trainer._ranks)
    found = state.whole(state._named({**state._trained, **state._head}, _gradient_of))
    copies = {name: tensor.numpy().copy() for name, tensor in found.items()}
    state.forget_gradient()  # Megatron's buffers become zeros
    return tally.loss, copies


def _gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    found = getattr(parameter, "main_grad", parameter.grad)  # Megatron's buffers have the former
    assert isinstance(found, torch.Tensor)
    return found


class RankedParity:
    """The embedded trainer's numbers, whatever part of them each rank computes."""

    settings: ClassVar[Mapping[str, Any]]
    """Of a trainer of two ranks."""

    @pytest.fixture(autouse=True)
    def _ranks(self, ranks: Gang) -> None:
        self.ranks = ranks

    def several(
        self,
        algorithm: Algorithm,
        settings: RankSettings,
        config: ModelConfig = CONFIG,
        tensors: Mapping[str, torch.Tensor] | None = None,
    ) -> GangTrainer:
        """A trainer of two ranks."""
        weights = initial_weights() if tensors is None else tensors
        chosen = replace(settings, **self.settings)
        return GangTrainer(self.ranks, config, weights, algorithm, chosen)

    def alone(self, algorithm: Algorithm, settings: RankSettings) -> Trainer:
        """The same trainer in this process."""
        return _alone(replace(settings, **self.settings), algorithm)

    @pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
    @pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
    def test_its_loss_and_gradient_are_those_of_the_embedded_trainer_on_padded_rows(
        self, algorithm: Algorithm, packed: bool
    ) -> None:
        one = EmbeddedTrainer(CONFIG, initial_weights(), algorithm, WHOLE)
        expected_loss, expected = gradient(one, full_batch(1), packed=False)
        answers = self.several(algorithm, WHOLE).every(gradient, full_batch(1), packed)
        assert max(float(np.abs(values).max()) for values in expected.values()) > 0.01
        for loss, found in answers:
            assert loss == pytest.approx(expected_loss, abs=1e-6)
            assert found.keys() == expected.keys()
            for name, values in expected.items():
                assert float(np.abs(found[name] - values).max()) <= 1e-6, name

    @pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
    @pytest.mark.parametrize(
        "cut", [{}, {"minibatches": 3, "epochs": 2, "mismatch": True}], ids=str
    )
    def test_its_steps_are_those_of_the_embedded_trainer(
        self, algorithm: Algorithm, cut: dict[str, Any]
    ) -> None:
        settings = replace(WHOLE, optimizer=adamw(1e-3), **cut)
        several = self.several(algorithm, settings)
        one = EmbeddedTrainer(CONFIG, initial_weights(), algorithm, settings)
        for step in (1, 2):
            batch = full_batch(step)
            found, expected = (asdict(each.train_step(step, batch)) for each in (several, one))
            for name in COMPARED:
                if expected[name] is None:
                    assert found[name] is None, name
                else:
                    assert found[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-5), name
            assert [each["tokens"] for each in found["lags"] or ()] == [
                each["tokens"] for each in expected["lags"] or ()
            ]
            assert '"ranks": 2' in found["kernels"]
        found_logprobs, expected_logprobs = (
            each.recompute_old_logprobs(batch)["old_logprobs"]
            .combine_chunks()
            .flatten()
            .to_pylist()
            for each in (several, one)
        )
        assert found_logprobs == pytest.approx(expected_logprobs, abs=1e-5)
        weights = one.weights()
        for name, tensor in several.weights().items():
            assert float((tensor - weights[name]).abs().max()) <= 2e-5, name

    def test_preferences_are_learned_from_as_by_the_embedded_trainer(self) -> None:
        algorithm, _ = CASES["dpo"]
        settings = replace(WHOLE, optimizer=adamw(1e-3))
        several = self.several(algorithm, settings)
        one = EmbeddedTrainer(CONFIG, initial_weights(), algorithm, settings)
        for step in (1, 2):
            batch = preference_batch(preference_rows(step))
            found, expected = (train_on(each, algorithm, step, batch) for each in (several, one))
            assert found.loss == pytest.approx(expected.loss, abs=1e-5)
            assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)

    def test_fewer_rows_than_ranks_still_train(self) -> None:
        settings = replace(WHOLE, minibatches=3)
        batch = table(make_rows(3, seed=1))
        found = self.several(grpo(), settings).train_step(1, batch)
        expected = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), settings).train_step(1, batch)
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)

    def test_what_one_rank_cannot_score_is_refused_by_all(self) -> None:
        several = self.several(grpo(), WHOLE)
        rows = make_rows(6, seed=1)
        sick = replace(rows[3], sampling=Sampling(allowed_token_ids=(0,)))
        assert any(rows[3].token_ids[at] for at in rows[3].actions)
        with pytest.raises(TrainerError, match="has probability 0"):
            several.train_step(1, table([*rows[:3], sick, *rows[4:]]))
        assert several.version == 0
        assert several.train_step(1, batch_of(1)).step == 1

    @pytest.mark.parametrize("algorithm", [grpo(), ppo(reference=1, kl=0.05)], ids=["grpo", "ppo"])
    def test_one_process_goes_on_from_two_and_two_from_one(
        self, tmp_path: Path, algorithm: Algorithm
    ) -> None:
        several = self.several(algorithm, CUT)
        for step in (1, 2):
            several.train_step(step, full_batch(step))
        several.save(tmp_path / "two")
        assert not list(tmp_path.glob(".*"))
        one = self.alone(algorithm, CUT)
        one.load(tmp_path / "two")
        assert one.version == 2
        assert fingerprint(one.weights()) == fingerprint(several.weights())
        one.save(tmp_path / "one")
        again = self.several(algorithm, CUT)
        again.load(tmp_path / "one")
        assert bits(again.train_step(3, full_batch(3))) == bits(
            several.train_step(3, full_batch(3))
        )
        other = self.several(algorithm, CUT)
        other.load(tmp_path / "two")
        found, expected = (each.train_step(3, full_batch(3)) for each in (one, other))
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)

    def test_a_checkpoint_of_the_embedded_trainer_is_one_to_go_on_from(
        self, tmp_path: Path
    ) -> None:
        several = self.several(grpo(), CUT)
        one = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT)
        one.train_step(1, batch_of(1))
        one.save(tmp_path / "embedded")
        several.load(tmp_path / "embedded")
        assert fingerprint(several.weights()) == fingerprint(one.weights())
        found, expected = (each.train_step(2, batch_of(2)) for each in (several, one))
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)

    def test_a_snapshot_of_one_process_is_one_to_fork_from(self, tmp_path: Path) -> None:
        from rollart_flow.trainers.checkpoint.checkpoint import write_checkpoint

        parent = self.alone(grpo(), CUT)
        parent.train_step(1, batch_of(1))
        write_checkpoint(tmp_path / "c", parent.snapshot())
        child = self.alone(grpo(), CUT)
        child.load(tmp_path / "c")
        assert bits(child.train_step(2, batch_of(2))) == bits(parent.train_step(2, batch_of(2)))


class RankedConformance(RankedParity, TrainerConformance):
    """The same, and the promises of every trainer."""

    def make_trainer(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> Trainer:
        return self.several(algorithm, settings, config, tensors)


def _alone(settings: RankSettings, algorithm: Algorithm) -> Trainer:
    from rollart_flow.trainers.backends.fsdp2 import Fsdp2Trainer
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    backend = {"fsdp2": Fsdp2Trainer, "megatron": MegatronTrainer}[settings.backend]
    return backend(CONFIG, initial_weights(), algorithm, settings)
