"""Trainers compute models of transformers: the promises of every trainer hold for them too."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers.utils import logging as transformers_logging

from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import TRANSFORMERS
from rollart_flow.models.folder import load_pretrained, save_folder
from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.policy import Policy
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.backends.fsdp2 import Fsdp2Trainer
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.build import build_trainer, check_trainer
from rollart_flow.trainers.settings import RankSettings, TrainerSettings
from rollart_flow.weights import fingerprint
from tests.models.hf.tiny import write_model
from tests.trainers.cases import CONFIG, initial_weights, make_rows, table
from tests.trainers.conformance import CUT, TrainerConformance, batch_of, bits


def in_transformers(config: ModelConfig) -> TransformersConfig:
    """The same shape, computed by transformers."""
    return TransformersConfig.parse(json.loads(config.files(torch.float32)["config.json"]))


class TestTrainerOfTransformers(TrainerConformance):
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
        shape = in_transformers(config)
        return EmbeddedTrainer(shape, tensors, algorithm, replace(settings, **self.changes))


def test_a_step_is_that_of_the_embedded_model() -> None:
    settings = RankSettings(optimizer=adamw(1e-3))
    own = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), settings)
    generic = EmbeddedTrainer(in_transformers(CONFIG), initial_weights(), grpo(), settings)
    scored = [each.recompute_old_logprobs(batch_of(1)) for each in (own, generic)]
    first, second = (each["old_logprobs"].combine_chunks().flatten() for each in scored)
    assert second.to_pylist() == pytest.approx(first.to_pylist(), abs=1e-5)
    one, other = (each.train_step(1, batch_of(1)) for each in (own, generic))
    assert other.loss == pytest.approx(one.loss, abs=1e-5)
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    assert other.entropy == pytest.approx(one.entropy, abs=1e-5)


def test_recomputed_layers_give_the_same_bits() -> None:
    for config in (CONFIG, in_transformers(CONFIG)):
        found = [
            EmbeddedTrainer(
                config, initial_weights(), grpo(), replace(CUT, gradient_checkpointing=chosen)
            ).train_step(1, batch_of(1))
            for chosen in (False, True)
        ]
        assert bits(found[0]) == bits(found[1])


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral", "gpt2"])
@pytest.mark.parametrize("make", [EmbeddedTrainer, Fsdp2Trainer])
def test_any_architecture_trains_and_continues_from_its_checkpoint(
    make: Any, kind: str, tmp_path: Path
) -> None:
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()
    write_model(kind, tmp_path / "model")
    config, tensors = load_pretrained(tmp_path / "model")
    settings = RankSettings(optimizer=adamw(1e-3))
    batches = [table(make_rows(6, seed=seed)) for seed in (1, 2)]
    trainer = make(config, tensors, grpo(), settings)
    assert fingerprint(trainer.weights()) == fingerprint(tensors)
    trainer.train_step(1, batches[0])
    trainer.save(tmp_path / "checkpoint")
    save_folder(tmp_path / "published", config, trainer.weights(), {})
    again = build_trainer(
        replace(settings, backend="embedded"), grpo(), str(tmp_path / "published")
    )
    assert fingerprint(again.weights()) == fingerprint(trainer.weights())
    continued = make(config, tensors, grpo(), settings)
    continued.load(tmp_path / "checkpoint")
    assert bits(continued.train_step(2, batches[1])) == bits(trainer.train_step(2, batches[1]))


def test_a_trainer_of_qwen3_alone_refuses_another_model(tmp_path: Path) -> None:
    write_model("llama", tmp_path)
    for policy in (
        Policy.from_pretrained(tmp_path, engine="vllm"),
        Policy.tiny(implementation=TRANSFORMERS),
    ):
        with pytest.raises(SettingsError, match="backend to embedded or fsdp2"):
            check_trainer(policy, TrainerSettings(backend="megatron"))
    with pytest.raises(SettingsError, match="gradient_checkpointing"):
        TrainerSettings(backend="megatron", gradient_checkpointing=True)
