"""The Megatron-core trainer, by itself and on two gloo ranks that split layers, or rows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rollart_flow.algorithms import grpo, ppo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.embedded import EmbeddedTrainer
from rollart_flow.trainers.megatron.trainer import MegatronTrainer
from rollart_flow.trainers.registry import TrainerSettings
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT, TrainerConformance, batch_of
from tests.trainers.gang import Gang, GangTrainer, gang
from tests.trainers.ranked import RankedConformance, RankedParity, full_batch

TENSOR: Mapping[str, Any] = {"backend": "megatron", "ranks": 2, "tensor_parallel": 2}
DATA: Mapping[str, Any] = {"backend": "megatron", "ranks": 2}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Gang]:
    """Two processes for all tests of the module."""
    with gang() as started:
        yield started


class TestByItself(TrainerConformance):
    """One process: all promises of every trainer, to the last bit."""

    def make_trainer(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: TrainerSettings,
    ) -> Trainer:
        chosen = replace(settings, backend="megatron")
        return MegatronTrainer(config, tensors, algorithm, chosen)


class TestTensorParallel(RankedParity):
    """Two ranks split each layer."""

    settings: ClassVar[Mapping[str, Any]] = TENSOR


@pytest.mark.whole
class TestTensorParallelKeepsEveryPromise(RankedConformance):
    """The same with all promises of every trainer, which takes longer."""

    settings: ClassVar[Mapping[str, Any]] = TENSOR


@pytest.mark.whole
class TestDataParallel(RankedParity):
    """Two ranks split the rows."""

    settings: ClassVar[Mapping[str, Any]] = DATA


@pytest.mark.parametrize("settings", [TENSOR, DATA], ids=str)
def test_five_steps_of_two_ranks_give_the_weights_of_the_embedded_trainer(
    ranks: Gang, settings: Mapping[str, Any]
) -> None:
    plain = TrainerSettings(optimizer=adamw(1e-3), micro_batch_tokens=100)
    several = GangTrainer(ranks, CONFIG, initial_weights(), grpo(), replace(plain, **settings))
    one = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), plain)
    for step in range(1, 6):
        results = [trainer.train_step(step, batch_of(step)) for trainer in (several, one)]
        assert results[0].loss == pytest.approx(results[1].loss, abs=1e-5)
    expected = one.weights()
    for name, tensor in several.weights().items():
        assert float((tensor - expected[name]).abs().max()) <= 2e-5, name


def test_a_checkpoint_goes_from_split_layers_to_split_rows(ranks: Gang, tmp_path: Path) -> None:
    tensor, data = (
        GangTrainer(ranks, CONFIG, initial_weights(), ppo(), replace(CUT, **settings))
        for settings in (TENSOR, DATA)
    )
    tensor.train_step(1, full_batch(1))
    tensor.save(tmp_path / "c")
    data.load(tmp_path / "c")
    assert fingerprint(data.weights()) == fingerprint(tensor.weights())
    found, expected = (trainer.train_step(2, full_batch(2)) for trainer in (data, tensor))
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
