"""Trainers of a mixture of experts: the embedded one's model is transformers', and Megatron's and
FSDP2's, on two ranks, give its numbers."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.feed_forward import Experts
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.backends.megatron.mapping import entries
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.ranks import by_itself
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.weights import fingerprint
from tests.trainers.backends.megatron.tensors import of_rank
from tests.trainers.backends.megatron.test_trainer import DATA, PIPELINE, TENSOR
from tests.trainers.conformance import CUT, bits
from tests.trainers.gang import Gang, GangTrainer
from tests.trainers.mixtures import LATER, MIXED, mixed_weights
from tests.trainers.ranked import WHOLE, full_batch, gradient

FSDP2 = {"backend": "fsdp2", "ranks": 2}
MANY = pytest.mark.parametrize(
    ("settings", "config"),
    [(TENSOR, MIXED), (TENSOR, LATER), (DATA, LATER), (PIPELINE, LATER), (FSDP2, MIXED)],
    ids=["tensor", "tensor, later", "data", "pipeline", "fsdp2"],
)
ALGORITHM = grpo(kl=0.1)
"""It has a frozen reference, which is a mixture too."""


def several(
    ranks: Gang, plain: RankSettings, settings: Mapping[str, Any], config: ModelConfig
) -> GangTrainer:
    """A trainer of two ranks."""
    weights = mixed_weights(config)
    return GangTrainer(ranks, config, weights, ALGORITHM, replace(plain, **settings))


@MANY
def test_its_loss_and_gradient_are_those_of_the_embedded_trainer(
    ranks: Gang, settings: Mapping[str, Any], config: ModelConfig
) -> None:
    one = EmbeddedTrainer(config, mixed_weights(config), ALGORITHM, WHOLE)
    expected_loss, expected = gradient(one, full_batch(1))
    routers = [values for name, values in expected.items() if name.endswith("mlp.gate.weight")]
    assert min(float(np.abs(values).max()) for values in routers) > 0.001
    for loss, found in several(ranks, WHOLE, settings, config).every(gradient, full_batch(1)):
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert float(np.abs(found[name] - values).max()) <= 2e-6, name


@MANY
def test_its_steps_are_those_of_the_embedded_trainer_and_go_on_from_a_checkpoint(
    ranks: Gang, settings: Mapping[str, Any], config: ModelConfig, tmp_path: Path
) -> None:
    plain = replace(WHOLE, optimizer=adamw(1e-3))
    many = several(ranks, plain, settings, config)
    one = EmbeddedTrainer(config, mixed_weights(config), ALGORITHM, plain)
    for step in (1, 2):
        found, expected = (each.train_step(step, full_batch(step)) for each in (many, one))
        assert found.loss == pytest.approx(expected.loss, abs=1e-5)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    weights = one.weights()
    for name, tensor in many.weights().items():
        assert float((tensor - weights[name]).abs().max()) <= 2e-5, name
    many.save(tmp_path / "c")
    again = several(ranks, plain, settings, config)
    again.load(tmp_path / "c")
    assert fingerprint(again.weights()) == fingerprint(many.weights())
    expected = many.train_step(3, full_batch(3))
    assert bits(again.train_step(3, full_batch(3))) == bits(expected)


def own_names(config: ModelConfig) -> list[str]:
    """Names of Megatron's parameters of a mixture's feed-forward blocks."""
    assert config.experts is not None
    return [
        f"decoder.layers.{layer}.mlp.{name}.weight"
        for layer in range(config.num_hidden_layers)
        for name in (
            "router",
            *(
                f"experts.local_experts.{expert}.{matrix}"
                for expert in range(config.experts.num_experts)
                for matrix in ("linear_fc1", "linear_fc2")
            ),
        )
    ]


def test_every_rank_has_rows_of_each_expert_and_the_whole_router() -> None:
    whole, names = mixed_weights(), own_names(MIXED)
    gathered: dict[str, list[torch.Tensor]] = {}
    for rank in range(2):
        local = of_rank(MIXED, names, whole, rank, 2)
        for name, entry in entries(MIXED, names, rank, 2).items():
            for hf, part in zip(entry.names, entry.parts(local[name]), strict=True):
                gathered.setdefault(hf, []).append(part)
    for hf, parts in gathered.items():
        if hf.endswith("gate.weight"):
            assert all(torch.equal(part, whole[hf]) for part in parts)
        else:
            assert torch.equal(torch.cat(parts, 1 if "down" in hf else 0), whole[hf])
    blocks = {name for name in whole if ".mlp." in name}
    assert gathered.keys() == blocks
    assert "model.layers.1.mlp.experts.3.gate_proj.weight" in blocks


def test_a_parameter_that_is_of_no_expert_is_refused() -> None:
    for name in ("mlp.experts.linear_fc1.weight", "mlp.shared_experts.linear_fc1.weight"):
        with pytest.raises(WeightsError, match="stands for no tensor"):
            entries(MIXED, [f"decoder.layers.0.{name}"], 0, 1)


def test_megatrons_config_routes_as_the_model_does() -> None:
    from rollart_flow.trainers.backends.megatron.experts import expert_settings

    assert MIXED.experts is not None
    assert LATER.experts is not None
    normalized, plain = (expert_settings(x, 2, Layout()) for x in (MIXED.experts, LATER.experts))
    assert (normalized["moe_router_pre_softmax"], plain["moe_router_pre_softmax"]) == (False, True)
    assert (normalized["moe_layer_freq"], plain["moe_layer_freq"]) == ([1, 1], [0, 1])
    assert normalized["moe_router_load_balancing_type"] == "none"
    split = expert_settings(MIXED.experts, 2, Layout(tensor=2, sequence=True))
    assert split["moe_token_dispatcher_type"] == "alltoall"


@pytest.mark.parametrize(
    ("changes", "settings", "said"),
    [
        ({"num_experts_per_tok": 1}, {}, "its router has no gradient"),
        ({"moe_intermediate_size": 25}, TENSOR, r"expert's intermediate size \(25\)"),
    ],
    ids=str,
)
def test_a_mixture_that_megatron_cannot_train_is_one_line(
    changes: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    assert MIXED.experts is not None
    config = replace(MIXED, experts=replace(MIXED.experts, **changes))
    chosen = replace(CUT, **{"backend": "megatron", **settings})
    joined = replace(by_itself(), count=chosen.ranks)
    with pytest.raises(SettingsError, match=said) as caught:
        MegatronTrainer(config, mixed_weights(config), ALGORITHM, chosen, joined)
    assert "\n" not in str(caught.value)


def test_impossible_experts_are_one_line() -> None:
    for wrong, said in (
        ({"num_experts": 0}, "num_experts must be at least 1"),
        ({"num_experts_per_tok": 5}, r"num_experts_per_tok \(5\) must be at most num_experts"),
    ):
        values: dict[str, Any] = {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
        }
        with pytest.raises(SettingsError, match=said):
            Experts(**{**values, **wrong})
