"""The Megatron-core trainer, by itself and on gloo ranks that split layers, rows or the stack.

Megatron is imported within the tests: it takes seconds, in every process that collects them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rollart_flow.algorithms import grpo, ppo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT, TrainerConformance, batch_of
from tests.trainers.gang import Gang, GangTrainer, gang
from tests.trainers.mixtures import LATER, mixed_weights
from tests.trainers.ranked import RankedConformance, RankedParity, full_batch
from tests.trainers.stack import train_with_the_stack

TENSOR: Mapping[str, Any] = {"backend": "megatron", "ranks": 2, "tensor_parallel": 2}
DATA: Mapping[str, Any] = {"backend": "megatron", "ranks": 2}
PIPELINE: Mapping[str, Any] = {"backend": "megatron", "ranks": 2, "pipeline_parallel": 2}


class TestByItself(TrainerConformance):
    """One process: all promises of every trainer, to the last bit."""

    def make_trainer(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> Trainer:
        from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

        chosen = replace(settings, backend="megatron")
        return MegatronTrainer(config, tensors, algorithm, chosen)


class TestTensorParallel(RankedParity):
    """Two ranks split each layer."""

    settings: ClassVar[Mapping[str, Any]] = TENSOR


class TestPipelineParallel(RankedParity):
    """Two ranks have half of the layers each, and Megatron's schedule between them."""

    settings: ClassVar[Mapping[str, Any]] = PIPELINE


@pytest.mark.whole
class TestTensorParallelKeepsEveryPromise(RankedConformance):
    """The same with all promises of every trainer, which takes longer."""

    settings: ClassVar[Mapping[str, Any]] = TENSOR


@pytest.mark.whole
class TestDataParallel(RankedParity):
    """Two ranks split the rows."""

    settings: ClassVar[Mapping[str, Any]] = DATA


@pytest.mark.parametrize("settings", [TENSOR, DATA, PIPELINE], ids=str)
def test_five_steps_of_two_ranks_give_the_weights_of_the_embedded_trainer(
    ranks: Gang, settings: Mapping[str, Any]
) -> None:
    plain = RankSettings(optimizer=adamw(1e-3), micro_batch_tokens=100)
    several = GangTrainer(ranks, CONFIG, initial_weights(), grpo(), replace(plain, **settings))
    one = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), plain)
    for step in range(1, 6):
        results = [trainer.train_step(step, batch_of(step)) for trainer in (several, one)]
        assert results[0].loss == pytest.approx(results[1].loss, abs=1e-5)
    expected = one.weights()
    for name, tensor in several.weights().items():
        assert float((tensor - expected[name]).abs().max()) <= 2e-5, name


@pytest.mark.whole
@pytest.mark.parametrize(
    "split",
    [
        {"tensor_parallel": 2, "pipeline_parallel": 2},
        {"pipeline_parallel": 2},
        {"tensor_parallel": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("prepare", [None, train_with_the_stack], ids=["plain", "stack"])
@pytest.mark.parametrize("config", [CONFIG, LATER], ids=["dense", "mixture"])
def test_four_ranks_give_the_weights_of_the_embedded_trainer(
    split: Mapping[str, Any],
    prepare: Callable[[], None] | None,
    config: ModelConfig,
    tmp_path: Path,
) -> None:
    """And a checkpoint of its optimizer, for one process."""
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    settings = replace(CUT, optimizer=adamw(1e-3, weight_decay=0.1))
    start = mixed_weights(config)
    one = EmbeddedTrainer(config, start, ppo(), settings)
    with gang(prepare=prepare, ranks=4) as four:
        chosen = replace(settings, backend="megatron", ranks=4, **split)
        several = GangTrainer(four, config, start, ppo(), chosen)
        for step in (1, 2):
            found, expected = (each.train_step(step, full_batch(step)) for each in (several, one))
            assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
        weights = several.weights()
        several.save(tmp_path / "c")
    for name, tensor in one.weights().items():
        assert float((tensor - weights[name]).abs().max()) <= 2e-5, name
    alone = MegatronTrainer(config, start, ppo(), replace(settings, backend="megatron"))
    alone.load(tmp_path / "c")
    assert fingerprint(alone.weights()) == fingerprint(weights)
    state, wanted = alone.snapshot().state, one.snapshot().state
    assert state.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert float((state[name].double() - tensor.double()).abs().max()) <= 2e-5, name


@pytest.mark.parametrize("settings", [TENSOR, PIPELINE], ids=str)
def test_a_checkpoint_goes_from_split_layers_to_split_rows(
    ranks: Gang, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    tensor, data = (
        GangTrainer(ranks, CONFIG, initial_weights(), ppo(), replace(CUT, **each))
        for each in (settings, DATA)
    )
    tensor.train_step(1, full_batch(1))
    tensor.save(tmp_path / "c")
    data.load(tmp_path / "c")
    assert fingerprint(data.weights()) == fingerprint(tensor.weights())
    found, expected = (trainer.train_step(2, full_batch(2)) for trainer in (data, tensor))
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
