"""The embedded trainer: the promises of every trainer, and that every setting does something."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.errors import SettingsError, TrainerError, WeightsError
from rollart_flow.models.folder import save_folder
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.build import build_trainer
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, initial_weights, make_rows, table
from tests.trainers.conformance import CUT, TrainerConformance, batch_of, bits

ROOT = Path(__file__).parents[3]


class TestEmbeddedTrainer(TrainerConformance):
    """The promises of every trainer."""

    changes: ClassVar[Mapping[str, Any]] = {}
    """Of the settings."""

    def make_trainer(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> Trainer:
        return EmbeddedTrainer(config, tensors, algorithm, replace(settings, **self.changes))


class TestEmbeddedTrainerInBfloat16(TestEmbeddedTrainer):
    """The same where passes are computed in bfloat16, over float32 weights."""

    tolerance = 0.1
    changes: ClassVar[Mapping[str, Any]] = {"dtype": "bfloat16"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestEmbeddedTrainerOnAGpu(TestEmbeddedTrainer):
    """The same where a GPU computes."""

    tolerance = 1e-4
    changes: ClassVar[Mapping[str, Any]] = {"device": "cuda"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^policy\.device='cuda': torch .* sees no GPU"):
        steps(RankSettings(device="cuda"))


def test_passes_in_bfloat16_differ_a_little_and_keep_float32_weights() -> None:
    (exact,) = steps(RankSettings(), count=1)
    (rounded,) = steps(RankSettings(dtype="bfloat16"), count=1)
    assert exact.loss != rounded.loss
    assert rounded.loss == pytest.approx(exact.loss, rel=0.1)
    assert rounded.grad_norm == pytest.approx(exact.grad_norm, rel=0.1)
    assert '"dtype": "bfloat16"' in rounded.kernels
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), replace(CUT, dtype="bfloat16"))
    trainer.train_step(1, batch_of(1))
    assert {tensor.dtype for tensor in trainer.weights().values()} == {torch.float32}


def test_megatron_has_no_other_dtype() -> None:
    with pytest.raises(SettingsError, match="the megatron trainer computes in float32"):
        RankSettings(backend="megatron", dtype="bfloat16")


def steps(
    settings: RankSettings, algorithm: Algorithm | None = None, count: int = 2
) -> list[StepResult]:
    """Train from version 0 and return what each step did."""
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm or grpo(), settings)
    return [trainer.train_step(step, batch_of(step)) for step in range(1, count + 1)]


COMPUTED_ELSEWHERE = """
import sys
from pathlib import Path
import pyarrow as pa
from rollart_flow.algorithms import grpo
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT
trainer = EmbeddedTrainer(CONFIG, initial_weights(seed=5), grpo(), CUT)
trainer.load(Path(sys.argv[1], "checkpoint"))
with pa.ipc.open_file(Path(sys.argv[1], "batch")) as batch:
    result = trainer.train_step(3, batch.read_all())
print(result.loss.hex(), result.grad_norm.hex(), result.fingerprint)
print(*({"torch._dynamo", "torch.distributed.tensor"} & set(sys.modules)))
"""


def test_another_process_computes_the_same_bits_without_torchs_compiler(tmp_path: Path) -> None:
    """It starts from a checkpoint, with other initial weights and another default of threads."""
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT)
    for step in (1, 2):
        trainer.train_step(step, batch_of(step))
    trainer.save(tmp_path / "checkpoint")
    batch = batch_of(3)
    with pa.ipc.new_file(tmp_path / "batch", batch.schema) as file:
        file.write_table(batch)
    expected = trainer.train_step(3, batch)
    found = subprocess.run(
        [sys.executable, "-c", COMPUTED_ELSEWHERE, str(tmp_path)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "3",
            "OMP_WAIT_POLICY": "PASSIVE",
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert found == [expected.loss.hex(), expected.grad_norm.hex(), expected.fingerprint]


@pytest.mark.parametrize(
    "change",
    [
        {"minibatches": 3},
        {"epochs": 1},
        {"seed": 1},
        {"optimizer": adamw(2e-2)},
        {"optimizer": adamw(1e-2, betas=(0.8, 0.999))},
        {"optimizer": adamw(1e-2, betas=(0.9, 0.9))},
        {"optimizer": adamw(1e-2, eps=1e-3)},
        {"optimizer": adamw(1e-2, weight_decay=0.1)},
        {"optimizer": adamw(1e-2, clip_norm=0.01)},
        {"optimizer": adamw(1e-2, clip_norm=0)},
        {"optimizer": adamw(1e-2, warmup_steps=3)},
        {"optimizer": adamw(1e-2, schedule="linear", decay_steps=5)},
        {"optimizer": adamw(1e-2, schedule="cosine", decay_steps=5)},
        {"optimizer": adamw(1e-2, schedule="linear", decay_steps=5, final_lr=5e-3)},
    ],
    ids=str,
)
def test_every_setting_changes_the_weights(change: Mapping[str, Any]) -> None:
    clipped = replace(CUT, optimizer=adamw(1e-2, clip_norm=0.05))
    base = clipped if change.get("optimizer") == adamw(1e-2, clip_norm=0) else CUT
    assert steps(base)[-1].fingerprint != steps(replace(base, **change))[-1].fingerprint


@pytest.mark.parametrize(
    "algorithm",
    [grpo(clip=0.1), grpo(clip_high=0.6), grpo(kl=0.1), grpo(entropy=0.1)],
    ids=str,
)
def test_every_parameter_of_the_loss_changes_the_weights(algorithm: Algorithm) -> None:
    assert steps(CUT)[-1].fingerprint != steps(CUT, algorithm)[-1].fingerprint


def test_micro_batches_change_memory_but_not_results() -> None:
    settings = RankSettings(optimizer=adamw(1e-3), micro_batch_tokens=60)
    small, large = (
        steps(settings, count=1),
        steps(replace(settings, micro_batch_tokens=5000), count=1),
    )
    assert small[0].loss == pytest.approx(large[0].loss, abs=1e-6)
    assert small[0].grad_norm == pytest.approx(large[0].grad_norm, rel=1e-5)


def test_the_learning_rate_follows_the_schedule() -> None:
    optimizer = adamw(1e-2, warmup_steps=1, schedule="linear", decay_steps=3)
    rates = [result.learning_rate for result in steps(replace(CUT, optimizer=optimizer), count=3)]
    assert rates == pytest.approx([1e-2, 5e-3, 0.0])


def test_a_large_gradient_is_clipped_and_reported_as_it_was() -> None:
    free = steps(RankSettings(optimizer=adamw(1e-2, clip_norm=0)), count=1)[0]
    clipped = steps(RankSettings(optimizer=adamw(1e-2, clip_norm=1e-3)), count=1)[0]
    assert free.grad_norm == clipped.grad_norm > 1e-3


def test_the_divergence_from_version_0_is_penalized() -> None:
    def drift(kl: float) -> float:
        trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(kl=kl), CUT)
        for step in range(1, 6):
            trainer.train_step(step, batch_of(1))
        start = initial_weights()
        return sum(float((t - start[n]).pow(2).sum()) for n, t in trainer.weights().items())

    assert drift(5.0) < drift(0.0)


def test_an_entropy_bonus_keeps_entropy_up() -> None:
    entropies = [
        steps(replace(CUT, epochs=4), grpo(entropy=bonus), count=3)[-1].entropy
        for bonus in (0.0, 0.5)
    ]
    assert entropies[1] > entropies[0]


def test_more_minibatches_than_trajectories_are_refused() -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), replace(CUT, minibatches=11))
    with pytest.raises(TrainerError, match=r"lower train\.minibatches"):
        trainer.train_step(1, batch_of(1, rows=10))


def test_a_folder_can_be_trained_and_bfloat16_is_trained_in_float32(tmp_path: Path) -> None:
    rounded = {name: tensor.bfloat16() for name, tensor in initial_weights().items()}
    save_folder(tmp_path / "model", CONFIG, rounded, {})
    trainer = build_trainer(CUT, grpo(), str(tmp_path / "model"))
    expected = {name: tensor.float() for name, tensor in rounded.items()}
    assert fingerprint(trainer.weights()) == fingerprint(expected)
    result = trainer.train_step(1, batch_of(1))
    assert bits(result) == bits(
        EmbeddedTrainer(CONFIG, expected, grpo(), CUT).train_step(1, batch_of(1))
    )


def test_weights_of_another_shape_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError):
        EmbeddedTrainer(replace(CONFIG, hidden_size=16), initial_weights(), grpo())
    with pytest.raises(SettingsError, match=r"config\.json"):
        build_trainer(CUT, grpo(), str(tmp_path))


def test_the_given_tensors_are_not_trained_in_place() -> None:
    tensors = initial_weights()
    EmbeddedTrainer(CONFIG, tensors, grpo(), CUT).train_step(1, table(make_rows(4, seed=0)))
    assert fingerprint(tensors) == fingerprint(initial_weights())


@pytest.mark.parametrize(
    ("name", "value"),
    [("backend", "megatorn"), ("minibatches", 0), ("epochs", 1.5), ("micro_batch_tokens", 0),
     ("threads", True), ("seed", -1)],
)  # fmt: skip
def test_a_bad_setting_is_one_line_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"\b{name}\b.* (expected|should be)") as caught:
        replace(CUT, **{name: value})
    assert "\n" not in str(caught.value)
