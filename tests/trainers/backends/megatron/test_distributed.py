"""Megatron's own training stack, which trains on GPUs, on two gloo ranks with CPU tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import grpo, ppo
from rollart_flow.errors import TrainerError
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.weights import fingerprint
from tests.trainers.backends.megatron.test_trainer import DATA, PIPELINE, TENSOR
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT, bits
from tests.trainers.gang import Gang, GangTrainer, gang
from tests.trainers.mixtures import LATER, MIXED, mixed_weights
from tests.trainers.ranked import RankedConformance, full_batch
from tests.trainers.stack import train_with_the_stack

LAYOUTS = pytest.mark.parametrize("layout", [TENSOR, DATA, PIPELINE], ids=str)
CRITIC = ppo(reference=1, kl=0.05)
"""An algorithm with a head to train beside the policy, which has a rate of its own."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Gang]:
    """Two processes that train with the stack."""
    with gang(prepare=train_with_the_stack) as started:
        yield started


def trainer(ranks: Gang, layout: Mapping[str, Any], settings: RankSettings) -> GangTrainer:
    """Of two ranks, with a critic."""
    return GangTrainer(ranks, CONFIG, initial_weights(), CRITIC, replace(settings, **layout))


def what_computes(trainer: Any) -> tuple[str, str, str]:
    """Names of the classes that hold the model, and its optimizer. Called in every rank."""
    state = trainer._train_state
    held = (state, state._chunk, state._sharded)
    one, other, third = (type(each).__name__ for each in held)
    return one, other, third


@LAYOUTS
def test_its_steps_are_those_of_the_embedded_trainer(
    ranks: Gang, layout: Mapping[str, Any]
) -> None:
    decaying = adamw(1e-3, weight_decay=0.1, warmup_steps=2)
    settings = replace(CUT, optimizer=decaying, mismatch=True)
    several = trainer(ranks, layout, settings)
    one = EmbeddedTrainer(CONFIG, initial_weights(), CRITIC, settings)
    assert (
        several.every(what_computes)
        == [("Distributed", "DistributedDataParallel", "DistributedOptimizer")] * 2
    )
    for step in (1, 2):
        found, expected = (each.train_step(step, full_batch(step)) for each in (several, one))
        for name in ("loss", "grad_norm", "value_loss", "kl", "entropy", "mismatch_kl"):
            wanted = pytest.approx(getattr(expected, name), abs=1e-5, rel=1e-5)
            assert getattr(found, name) == wanted, name
    weights = one.weights()
    for name, tensor in several.weights().items():
        assert float((tensor - weights[name]).abs().max()) <= 2e-5, name


@pytest.mark.parametrize(
    ("layout", "config"),
    [(TENSOR, MIXED), (DATA, LATER), (PIPELINE, LATER)],
    ids=["tensor", "data", "pipeline"],
)
def test_a_mixture_of_experts_is_trained_and_kept_as_any_other(
    ranks: Gang, layout: Mapping[str, Any], config: ModelConfig, tmp_path: Path
) -> None:
    settings = replace(CUT, optimizer=adamw(1e-3, weight_decay=0.1))
    weights = mixed_weights(config)
    one = EmbeddedTrainer(config, weights, CRITIC, settings)
    several, again = (
        GangTrainer(ranks, config, weights, CRITIC, replace(settings, **layout)) for _ in range(2)
    )
    found, expected = (each.train_step(1, full_batch(1)) for each in (several, one))
    for name in ("loss", "grad_norm", "value_loss", "kl", "entropy"):
        wanted = pytest.approx(getattr(expected, name), abs=1e-5, rel=1e-5)
        assert getattr(found, name) == wanted, name
    trained = several.weights()
    for name, tensor in one.weights().items():
        assert float((tensor - trained[name]).abs().max()) <= 2e-5, name
    several.save(tmp_path / "c")
    again.load(tmp_path / "c")
    expected = several.train_step(2, full_batch(2))
    assert bits(again.train_step(2, full_batch(2))) == bits(expected)


@LAYOUTS
def test_its_checkpoint_is_one_for_any_trainer_and_back(
    ranks: Gang, layout: Mapping[str, Any], tmp_path: Path
) -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    several = trainer(ranks, layout, CUT)
    several.train_step(1, full_batch(1))
    several.save(tmp_path / "stack")
    plain: Trainer = MegatronTrainer(
        CONFIG, initial_weights(), CRITIC, replace(CUT, backend="megatron")
    )
    plain.load(tmp_path / "stack")
    assert fingerprint(plain.weights()) == fingerprint(several.weights())
    plain.save(tmp_path / "plain")
    again = trainer(ranks, layout, CUT)
    again.load(tmp_path / "plain")
    expected = several.train_step(2, full_batch(2))
    assert bits(again.train_step(2, full_batch(2))) == bits(expected)
    assert plain.train_step(2, full_batch(2)).loss == pytest.approx(expected.loss, abs=1e-5)


def content(folder: Path, config: ModelConfig) -> tuple[str, str]:
    """Fingerprints of the weights of a checkpoint, and of all else in it, both whole."""
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    alone = replace(CUT, backend="megatron")
    reader = MegatronTrainer(config, mixed_weights(config), grpo(), alone)
    reader.load(folder)
    found = reader.snapshot()
    assert sum(name.endswith("/exp_avg_sq") for name in found.state) == len(found.weights)
    return fingerprint(found.weights), fingerprint(found.state)


def test_a_checkpoint_goes_through_all_layouts_and_loses_no_bit(
    ranks: Gang, tmp_path: Path
) -> None:
    """Weights and moments, which the distributed optimizers of the ranks have in other shares."""
    weights = mixed_weights()
    every = [
        GangTrainer(ranks, MIXED, weights, grpo(), replace(CUT, **layout))
        for layout in (TENSOR, PIPELINE, DATA, TENSOR)
    ]
    first, *others = every
    first.train_step(1, full_batch(1))
    first.save(tmp_path / "0")
    for at, trainer in enumerate(others):
        trainer.load(tmp_path / str(at))
        trainer.save(tmp_path / str(at + 1))
    one, *rest = (content(tmp_path / str(at), MIXED) for at in range(4))
    assert rest == [one] * 3
    expected = bits(first.train_step(2, full_batch(2)))
    assert bits(others[-1].train_step(2, full_batch(2))) == expected


def kept_as_megatron_keeps_it(trainer: Any) -> bool:
    """Whether the moments in our checkpoints are those in Megatron's own kind of checkpoints that
    any number of ranks can read. Called in every rank."""
    state = trainer._train_state
    kind = {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": state._groups.data,
    }
    model = state._mcore.module.sharded_state_dict(metadata=kind)
    theirs = state._stack.sharded_state_dict(model, metadata=kind)["param_state"]
    parameters = [p for buffer in state._sharded.buffers for p in buffer.param_index_map]
    assert len(parameters) == len(theirs) == len(state._trained)
    return all(
        bool(torch.equal(state._moments(parameter)[moment], theirs[at][moment].data))
        for at, parameter in enumerate(parameters)
        for moment in ("exp_avg", "exp_avg_sq")
    )


@pytest.mark.parametrize("layout", [TENSOR, DATA], ids=str)
def test_its_checkpoints_keep_what_megatrons_own_do(ranks: Gang, layout: Mapping[str, Any]) -> None:
    """Not on stages: there Megatron asks its process-wide state, which nobody fills here."""
    several = GangTrainer(ranks, MIXED, mixed_weights(), grpo(), replace(CUT, **layout))
    several.train_step(1, full_batch(1))
    assert several.every(kept_as_megatron_keeps_it) == [True, True]


@LAYOUTS
def test_a_step_that_fails_after_an_update_leaves_no_trace(
    ranks: Gang, layout: Mapping[str, Any]
) -> None:
    one, healthy = trainer(ranks, layout, CUT), trainer(ranks, layout, CUT)
    for each in (one, healthy):
        each.train_step(1, full_batch(1))
    sick = full_batch(2)
    at = sick.schema.get_field_index("logprobs")
    rows = sick.column(at).to_pylist()
    rows[4] = [float("nan")] * len(rows[4])
    sick = sick.set_column(at, sick.schema.field(at), pa.array(rows, sick.schema.field(at).type))
    with pytest.raises(TrainerError, match="not finite"):
        one.train_step(2, sick)
    assert fingerprint(one.weights()) == fingerprint(healthy.weights())
    assert bits(one.train_step(2, full_batch(2))) == bits(healthy.train_step(2, full_batch(2)))


@pytest.mark.whole
class TestStackOnTensorParallelRanks(RankedConformance):
    """All promises of every trainer, with layers split."""

    settings: ClassVar[Mapping[str, Any]] = TENSOR


@pytest.mark.whole
class TestStackOnStages(RankedConformance):
    """All promises of every trainer, with the layers in two stages."""

    settings: ClassVar[Mapping[str, Any]] = PIPELINE


def test_settings_of_the_optimizer_are_megatrons() -> None:
    from rollart_flow.trainers.backends.megatron.distributed import optimizer_config

    settings = adamw(2e-3, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1, clip_norm=0.5)
    found = optimizer_config(settings)
    assert (found.lr, found.adam_beta1, found.adam_beta2, found.adam_eps) == (2e-3, 0.8, 0.95, 1e-7)
    assert (found.weight_decay, found.clip_grad, found.optimizer) == (0.1, 0.5, "adam")
    assert found.decoupled_weight_decay
    assert found.use_distributed_optimizer


def test_only_matrices_of_the_policy_decay_and_the_critic_has_its_own_rate() -> None:
    from rollart_flow.trainers.backends.megatron.distributed import overrides

    keys = overrides(adamw(1e-3, weight_decay=0.1), 10.0)
    matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))

    def of(parameter: torch.nn.Parameter, name: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for key, one in keys.items():
            found |= one if key.matches(parameter, name) else {}
        return found

    assert of(matrix, "module.module.decoder.layers.0.mlp.linear_fc1.weight") == {}
    assert of(vector, "module.module.decoder.final_layernorm.weight") == {"wd_mult": 0.0}
    critic = {"wd_mult": 0.0, "max_lr": pytest.approx(1e-2)}
    assert of(matrix, "module.value_head.weight") == critic
    assert of(vector, "module.value_head.bias") == critic


def test_gradients_are_summed_in_float32_and_exchanged_early_where_all_ranks_have_all() -> None:
    from rollart_flow.trainers.backends.megatron.distributed import data_parallel_config

    one, two = data_parallel_config(1), data_parallel_config(2)
    assert one.use_distributed_optimizer
    assert one.grad_reduce_in_fp32
    assert not one.average_in_collective
    assert (one.overlap_grad_reduce, two.overlap_grad_reduce) == (True, False)
