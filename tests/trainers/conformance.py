"""What every trainer promises. A backend's test subclasses `TrainerConformance`, gives
`make_trainer`, and inherits every test.

Tolerances are none: a backend that cannot give the same bits on the same machine overrides nothing
here, it does not conform.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers import adamw
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.batch.training_batch import read_scorable
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.scoring import recompute_logprobs
from rollart_flow.types import Sampling
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, Row, initial_weights, make_rows, on_policy, table
from tests.trainers.preferences import (
    CASES,
    loss_and_gradient,
    norm,
    preference_batch,
    preference_rows,
    train_on,
)

CUT = RankSettings(optimizer=adamw(1e-2), minibatches=2, epochs=2, micro_batch_tokens=100)
"""Settings under which a step is several updates, so that order and RNG matter."""


def batch_of(step: int, *, rows: int = 10) -> pa.Table:
    """A batch of its own for each step."""
    return table(make_rows(rows, seed=step))


def bits(result: StepResult) -> tuple[float, ...]:
    """Everything that must be the same when a step is computed again."""
    return (
        result.loss, result.grad_norm, result.ratio_mean, result.ratio_max, result.clip_fraction,
        result.kl, result.entropy, result.learning_rate,
        float(int(result.fingerprint[:12], 16)),
    )  # fmt: skip


class TrainerConformance(ABC):
    """The tests."""

    tolerance = 1e-5
    """Of logprobs, beside those that a CPU computes in float32 [nats]."""

    @abstractmethod
    def make_trainer(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> Trainer:
        """A trainer at version 0 with these weights."""

    def start(self, settings: RankSettings = CUT, algorithm: Algorithm | None = None) -> Trainer:
        return self.make_trainer(CONFIG, initial_weights(), algorithm or grpo(), settings)

    def test_it_starts_at_version_0_with_the_given_weights(self) -> None:
        trainer = self.start()
        assert trainer.version == 0
        assert fingerprint(trainer.weights()) == fingerprint(initial_weights())

    def test_a_step_makes_the_next_version_and_says_what_it_did(self) -> None:
        trainer = self.start(replace(CUT, threads=1))
        batch = batch_of(1)
        result = trainer.train_step(1, batch)
        assert trainer.version == result.step == 1
        assert (
            result.fingerprint == fingerprint(trainer.weights()) != fingerprint(initial_weights())
        )
        assert trainer.checksum == result.fingerprint
        assert result.tokens == len(batch["token_ids"].combine_chunks().flatten())
        mask = batch["action_mask"].combine_chunks().flatten()
        assert result.action_tokens == sum(mask.to_pylist())
        assert result.learning_rate == 1e-2
        assert result.threads == 1
        assert result.grad_norm > 0
        assert result.train_s > 0
        assert result.ratio_max > result.ratio_mean > 0
        assert 0 < result.clip_fraction < 1
        assert result.entropy > 0
        assert result.kl > 0
        assert result.kernels.startswith("{")

    def test_any_other_step_is_refused(self) -> None:
        trainer = self.start()
        for step in (0, 2, -1):
            with pytest.raises(TrainerError, match="version 0"):
                trainer.train_step(step, batch_of(1))
        trainer.train_step(1, batch_of(1))
        with pytest.raises(TrainerError, match="version 1"):
            trainer.train_step(1, batch_of(1))

    def test_the_same_batches_give_the_same_bits(self) -> None:
        one, other = self.start(), self.start()
        for step in (1, 2, 3):
            batch = batch_of(step)
            assert bits(one.train_step(step, batch)) == bits(other.train_step(step, batch))

    def test_several_threads_give_the_same_bits_too(self) -> None:
        settings = RankSettings(optimizer=adamw(1e-2), threads=2)
        one, other = self.start(settings), self.start(settings)
        results = [trainer.train_step(1, batch_of(1)) for trainer in (one, other)]
        assert bits(results[0]) == bits(results[1])
        assert [result.threads for result in results] == [2, 2]

    def test_the_process_settings_do_not_change_the_bits_nor_are_changed(self) -> None:
        expected = bits(self.start().train_step(1, batch_of(1)))
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(threads + 1)
            torch.manual_seed(7)
            torch.set_float32_matmul_precision("medium")
            assert bits(self.start().train_step(1, batch_of(1))) == expected
            assert torch.get_num_threads() == threads + 1
            assert torch.get_float32_matmul_precision() == "medium"
            assert not torch.are_deterministic_algorithms_enabled()
        finally:
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision("highest")

    def test_another_batch_gives_another_version(self) -> None:
        one, other = self.start(), self.start()
        assert bits(one.train_step(1, batch_of(1))) != bits(other.train_step(1, batch_of(2)))

    def test_preferences_give_the_loss_and_the_gradient_of_their_paper(self) -> None:
        """In the second step, in which the policy is no longer the reference."""
        algorithm, formula = CASES["kto"]
        trainer = self.start(replace(CUT, minibatches=1, epochs=1), algorithm)
        train_on(trainer, algorithm, 1, preference_batch(preference_rows(1)))
        weights, rows = trainer.weights(), preference_rows(2)
        result = train_on(trainer, algorithm, 2, preference_batch(rows))
        loss, gradient = loss_and_gradient(formula, rows, weights, initial_weights())
        assert result.loss == pytest.approx(loss, rel=10 * self.tolerance)
        assert result.grad_norm == pytest.approx(norm(gradient), rel=100 * self.tolerance)

    def test_packed_rows_give_the_step_of_padded_rows(self) -> None:
        """The reference is computed once for both epochs of packed rows, and twice for others."""
        batch, divergent = batch_of(1), grpo(kl=0.1)
        packed, padded = (
            self.start(replace(CUT, packed=each), divergent).train_step(1, batch)
            for each in (True, False)
        )
        assert packed.loss == pytest.approx(padded.loss, abs=self.tolerance)
        assert packed.grad_norm == pytest.approx(padded.grad_norm, rel=100 * self.tolerance)
        assert json.loads(packed.kernels) == {**json.loads(padded.kernels), "packed": True}

    def test_a_snapshot_has_the_weights_before_the_next_step_whoever_copies_them(self) -> None:
        trainer = self.start()
        early, late = trainer.snapshot_weights(), fingerprint(trainer.weights())
        trainer.train_step(1, batch_of(1))
        assert fingerprint(early.take()) == late
        taken, first = trainer.snapshot_weights(), fingerprint(trainer.weights())
        copies = taken.take()
        trainer.train_step(2, batch_of(2))
        assert fingerprint(copies) == first != fingerprint(trainer.weights())

    def test_weights_are_safe_to_keep_and_to_change(self) -> None:
        trainer, untouched = self.start(), self.start()
        kept = trainer.weights()
        before = fingerprint(kept)
        trainer.train_step(1, batch_of(1))
        assert fingerprint(kept) == before
        for tensor in trainer.weights().values():
            assert not tensor.requires_grad
            tensor.zero_()
        untouched.train_step(1, batch_of(1))
        assert bits(trainer.train_step(2, batch_of(2))) == bits(
            untouched.train_step(2, batch_of(2))
        )

    def test_it_goes_on_from_a_checkpoint_as_if_never_stopped(self, tmp_path: Path) -> None:
        trainer = self.start()
        for step in (1, 2):
            trainer.train_step(step, batch_of(step))
        trainer.save(tmp_path / "checkpoint")
        expected = [bits(trainer.train_step(step, batch_of(step))) for step in (3, 4)]
        again = self.start()
        again.load(tmp_path / "checkpoint")
        assert again.version == 2
        assert [bits(again.train_step(step, batch_of(step))) for step in (3, 4)] == expected

    def test_memory_that_is_freed_between_steps_changes_no_bit(self) -> None:
        trainer, untouched = self.start(), self.start()
        for step in (1, 2, 3):
            batch = batch_of(step)
            freed = [trainer.offload(), trainer.offload()]
            assert freed[0] >= 0
            assert freed[1] == 0, "it is free already"
            trainer.reload()
            assert bits(trainer.train_step(step, batch)) == bits(untouched.train_step(step, batch))
            assert fingerprint(trainer.weights()) == fingerprint(untouched.weights())

    def test_a_trainer_can_go_back(self, tmp_path: Path) -> None:
        trainer = self.start()
        trainer.save(tmp_path / "start")
        expected = bits(trainer.train_step(1, batch_of(1)))
        trainer.train_step(2, batch_of(2))
        trainer.load(tmp_path / "start")
        assert trainer.version == 0
        assert trainer.checksum is None
        assert fingerprint(trainer.weights()) == fingerprint(initial_weights())
        assert bits(trainer.train_step(1, batch_of(1))) == expected

    def test_a_newer_checkpoint_replaces_the_one_that_is_there(self, tmp_path: Path) -> None:
        trainer = self.start()
        trainer.save(tmp_path / "checkpoint")
        trainer.train_step(1, batch_of(1))
        trainer.save(tmp_path / "checkpoint")
        again = self.start()
        again.load(tmp_path / "checkpoint")
        assert again.version == 1
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    def test_no_checkpoint_and_that_of_another_model_are_refused(self, tmp_path: Path) -> None:
        trainer = self.start()
        with pytest.raises(TrainerError, match="no checkpoint"):
            trainer.load(tmp_path / "nothing")
        config = replace(CONFIG, num_hidden_layers=4)
        model = Qwen3(config)
        model.initialize(0)
        self.make_trainer(config, model.state_dict(), grpo(), CUT).save(tmp_path / "other")
        with pytest.raises(TrainerError, match="another shape"):
            trainer.load(tmp_path / "other")
        assert bits(trainer.train_step(1, batch_of(1))) == bits(
            self.start().train_step(1, batch_of(1))
        )

    @pytest.mark.parametrize("settings", [CUT, replace(CUT, minibatches=1, epochs=1)])
    @pytest.mark.parametrize("where", ["logprobs", "advantage"])
    def test_a_step_that_is_not_finite_leaves_no_trace(
        self, settings: RankSettings, where: str
    ) -> None:
        rows = make_rows(10, seed=2)
        sick = replace(
            rows[4],
            logprobs=[float("nan")] * len(rows[4].logprobs)
            if where == "logprobs"
            else rows[4].logprobs,
            advantage=[float("inf")] if where == "advantage" else rows[4].advantage,
        )
        trainer, healthy = self.start(settings), self.start(settings)
        for one in (trainer, healthy):
            one.train_step(1, batch_of(1))
        with pytest.raises(TrainerError, match="not finite") as caught:
            trainer.train_step(2, table([*rows[:4], sick, *rows[5:]]))
        assert "\n" not in str(caught.value)
        assert trainer.version == 1
        assert fingerprint(trainer.weights()) == fingerprint(healthy.weights())
        assert bits(trainer.train_step(2, batch_of(2))) == bits(healthy.train_step(2, batch_of(2)))

    def test_a_skipped_step_is_a_version_with_the_same_weights(self) -> None:
        rows = make_rows(10, seed=2)
        sick = table([*rows[:9], replace(rows[9], advantage=[float("inf")])])
        trainer, again = self.start(), self.start()
        results = []
        for one in (trainer, again):
            one.train_step(1, batch_of(1))
            before = fingerprint(one.weights())
            results.append(one.train_or_skip(2, sick))
            assert one.version == 2
            assert fingerprint(one.weights()) == before
            results.append(one.train_or_skip(3, batch_of(3)))
        skipped, trained = results[:2]
        assert "not finite" in (skipped.skipped or "")
        assert (skipped.loss, skipped.grad_norm) == (0.0, 0.0)
        assert skipped.action_tokens < skipped.tokens
        assert trained.skipped is None
        assert list(map(bits, results[:2])) == list(map(bits, results[2:]))

    def test_a_batch_that_it_cannot_score_leaves_no_trace(self) -> None:
        trainer = self.start()
        greedy = table(make_rows(4, seed=1, sampling=Sampling(temperature=0.0)))
        with pytest.raises(TrainerError, match="greedily"):
            trainer.train_step(1, greedy)
        assert trainer.version == 0
        assert bits(trainer.train_step(1, batch_of(1))) == bits(
            self.start().train_step(1, batch_of(1))
        )

    def test_it_assesses_a_batch_under_its_current_weights_and_changes_nothing(self) -> None:
        trainer, untouched = self.start(), self.start()
        for one in (trainer, untouched):
            one.train_step(1, batch_of(1))
        rows = make_rows(10, seed=2)
        found = trainer.recompute_old_logprobs(table(rows))
        assert found.column_names == ["old_logprobs"]
        model = Qwen3(CONFIG)
        model.load_state_dict(trainer.weights())
        expected = recompute_logprobs(model, read_scorable(table(rows)))
        for logprobs, wanted in zip(found["old_logprobs"].to_pylist(), expected, strict=True):
            assert logprobs == pytest.approx(wanted.tolist(), abs=self.tolerance)
        assert bits(trainer.train_step(2, batch_of(2))) == bits(
            untouched.train_step(2, batch_of(2))
        )

    def test_what_was_good_becomes_likelier_and_what_was_bad_less(self) -> None:
        weights = initial_weights()
        rows = on_policy(make_rows(8, seed=3), weights)
        rows = [replace(row, advantage=[1.0 if at % 2 else -1.0]) for at, row in enumerate(rows)]
        trainer = self.start(RankSettings(optimizer=adamw(3e-3)))
        first = trainer.train_step(1, table(rows))
        assert first.ratio_mean == pytest.approx(1.0, abs=10 * self.tolerance)
        trainer.train_step(2, table(rows))
        before, after = _means(weights, rows), _means(trainer.weights(), rows)
        assert sum(after[1::2]) > sum(before[1::2])
        assert sum(after[0::2]) < sum(before[0::2])

    def test_a_batch_that_teaches_nothing_has_no_gradient(self) -> None:
        rows = [replace(row, advantage=[0.0]) for row in make_rows(4, seed=3)]
        result = self.start(replace(CUT, minibatches=1, epochs=1)).train_step(1, table(rows))
        assert (result.loss, result.grad_norm) == (0.0, 0.0)
        assert result.fingerprint == fingerprint(initial_weights())


def _means(weights: Mapping[str, torch.Tensor], rows: list[Row]) -> list[float]:
    model = Qwen3(CONFIG)
    model.load_state_dict(dict(weights))
    return [float(x.mean()) for x in recompute_logprobs(model, read_scorable(table(rows)))]
