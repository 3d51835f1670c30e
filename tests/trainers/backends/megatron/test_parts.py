"""Parts of the Megatron-core trainer: names and splits of tensors, config, and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch

from rollart_flow import Policy
from rollart_flow.algorithms import grpo
from rollart_flow.errors import MissingExtraError, SettingsError, WeightsError
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers.backends.megatron import capabilities as capabilities_module
from rollart_flow.trainers.backends.megatron.capabilities import Capabilities, capabilities
from rollart_flow.trainers.backends.megatron.mapping import entries, local_rows
from rollart_flow.trainers.build import check_trainer
from rollart_flow.trainers.layout import Layout, layout_of
from rollart_flow.trainers.ranks import Ranks, by_itself
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.trainers.step.kernels import describe_kernels
from tests.trainers.cases import CONFIG, initial_weights, make_rows, reference_model

WIDE = replace(CONFIG, num_attention_heads=8, num_key_value_heads=4, intermediate_size=64)
"""Divides over four ranks; its vocabulary of 31 does not, over any number."""
CPU = Capabilities(cuda=False, transformer_engine=False, stack=False)
GPU = Capabilities(cuda=True, transformer_engine=True, stack=True)


def weights_of(config: ModelConfig) -> dict[str, torch.Tensor]:
    model = Qwen3(config)
    model.initialize(1)
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }


def own_names(config: ModelConfig) -> list[str]:
    """Parameters of Megatron's own modules."""
    layer = (
        "input_layernorm.weight", "self_attention.linear_proj.weight",
        "self_attention.linear_qkv.weight", "self_attention.q_layernorm.weight",
        "self_attention.k_layernorm.weight", "pre_mlp_layernorm.weight",
        "mlp.linear_fc1.weight", "mlp.linear_fc2.weight",
    )  # fmt: skip
    layers = [f"decoder.layers.{i}.{n}" for i in range(config.num_hidden_layers) for n in layer]
    head = [] if config.tie_word_embeddings else ["output_layer.weight"]
    return ["embedding.word_embeddings.weight", *layers, "decoder.final_layernorm.weight", *head]


def engine_names(config: ModelConfig) -> list[str]:
    """Those of Transformer Engine's modules."""
    return [
        name.replace("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")
        .replace("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight")
        for name in own_names(config)
    ]  # fmt: skip


def of_rank(
    config: ModelConfig, names: list[str], whole: Mapping[str, torch.Tensor], rank: int, ranks: int
) -> dict[str, torch.Tensor]:
    """Megatron's tensors of one rank."""
    found = {}
    for name, entry in entries(config, names, rank, ranks).items():
        parts = []
        for hf in entry.names:
            tensor = whole[hf]
            if entry.dim is not None:
                mine = local_rows(tensor.shape[entry.dim], rank, ranks)
                tensor = tensor.narrow(entry.dim, mine.start, len(mine))
            parts.append(tensor)
        found[name] = entry.joined(parts)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("names_of", [own_names, engine_names])
def test_there_and_back_again_gives_the_same_bits(ranks: int, tied: bool, names_of: Any) -> None:
    config = replace(WIDE, tie_word_embeddings=tied)
    whole, names = weights_of(config), names_of(config)
    pieces: dict[str, list[torch.Tensor]] = {}
    dims: dict[str, int | None] = {}
    for rank in range(ranks):
        local = of_rank(config, names, whole, rank, ranks)
        for name, entry in entries(config, names, rank, ranks).items():
            for hf, part in zip(entry.names, entry.parts(local[name]), strict=True):
                pieces.setdefault(hf, []).append(part)
                dims[hf] = entry.dim
    assert pieces.keys() == whole.keys()
    for hf, parts in pieces.items():
        dim = dims[hf]
        found = [torch.cat(parts, dim)] if dim is not None else parts
        assert all(torch.equal(each, whole[hf]) for each in found), hf


def test_a_stage_has_layers_from_its_first_one_on_and_the_last_one_the_tied_embedding() -> None:
    names = ["decoder.layers.1.mlp.linear_fc2.weight", "output_layer.weight"]
    for tied, output in ((True, "model.embed_tokens.weight"), (False, "lm_head.weight")):
        found = entries(replace(WIDE, tie_word_embeddings=tied), names, 0, 1, first_layer=2)
        assert [entry.names for entry in found.values()] == [
            ("model.layers.3.mlp.down_proj.weight",),
            (output,),
        ]


def test_stages_are_among_what_the_bits_depend_on_only_where_there_are_several() -> None:
    alone = Ranks(count=4, replicas=2)
    assert "pipeline_parallel" not in describe_kernels(alone, "float32")
    assert '"tensor_parallel": 2' in describe_kernels(alone, "float32")
    staged = describe_kernels(replace(alone, stages=2), "float32")
    assert '"pipeline_parallel": 2' in staged
    assert '"tensor_parallel": 1' in staged


def test_every_rank_has_as_many_rows_of_the_vocabulary_and_pads_with_zeros() -> None:
    whole = weights_of(WIDE)
    found = [of_rank(WIDE, own_names(WIDE), whole, rank, 4) for rank in range(4)]
    embeddings = [each["embedding.word_embeddings.weight"] for each in found]
    assert [len(each) for each in embeddings] == [8, 8, 8, 8]
    assert not embeddings[3][-1].any()


def test_queries_keys_and_values_of_a_group_lie_side_by_side() -> None:
    """The order that Megatron computes with, spelled out."""
    whole, width = weights_of(WIDE), WIDE.hidden_size
    q, k, v = (whole[f"model.layers.0.self_attn.{x}_proj.weight"] for x in "qkv")
    wanted = torch.cat([x.view(4, -1, width) for x in (q, k, v)], 1).reshape(-1, width).chunk(2)
    gate, up = (whole[f"model.layers.0.mlp.{x}_proj.weight"].chunk(2) for x in ("gate", "up"))
    for rank in range(2):
        found = of_rank(WIDE, own_names(WIDE), whole, rank, 2)
        assert torch.equal(found["decoder.layers.0.self_attention.linear_qkv.weight"], wanted[rank])
        fc1 = found["decoder.layers.0.mlp.linear_fc1.weight"]
        assert torch.equal(fc1, torch.cat([gate[rank], up[rank]]))


def test_a_tensor_that_a_qwen3_does_not_have_is_refused() -> None:
    for name in ("decoder.layers.0.mlp.router.weight", "mtp.layers.0.weight"):
        with pytest.raises(WeightsError, match="stands for no tensor"):
            entries(CONFIG, [name], 0, 1)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_one_rank_are_those_of_transformers(tied: bool) -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    config = replace(CONFIG, tie_word_embeddings=tied)
    whole = initial_weights() if tied else weights_of(config)
    trainer = MegatronTrainer(config, whole, grpo(), TrainerSettings(backend="megatron"))
    plain = Qwen3(config)
    plain.load_state_dict(whole)
    tokens = torch.tensor([make_rows(1, seed=1)[0].token_ids])
    with torch.no_grad():
        found = trainer._model.logits(trainer._model(tokens)[0])
        assert float((found - plain.logits(plain(tokens)[0])).abs().max()) <= 1e-5
        if tied:
            wanted = reference_model(whole).float()(tokens).logits[0]
            assert float((found - wanted).abs().max()) <= 1e-5
    assert found.shape == (tokens.shape[1], config.vocab_size)


def test_the_config_says_what_the_model_computes() -> None:
    from rollart_flow.trainers.backends.megatron.config import padded_vocabulary, transformer_config

    found = transformer_config(WIDE, Layout(tensor=2), CPU)
    assert (found.num_attention_heads, found.num_query_groups, found.kv_channels) == (8, 4, 8)
    assert (found.ffn_hidden_size, found.layernorm_epsilon) == (64, WIDE.rms_norm_eps)
    assert (found.tensor_model_parallel_size, found.sequence_parallel) == (2, False)
    assert found.hidden_dropout == found.attention_dropout == 0.0
    assert transformer_config(WIDE, Layout(tensor=2, sequence=True), GPU).sequence_parallel
    assert padded_vocabulary(WIDE, Layout(tensor=4)) == 32


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backend": "megatron", "ranks": 3, "tensor_parallel": 2}, "ranks=3: must be a multiple"),
        ({"backend": "megatron", "tensor_parallel": 2}, "ranks=1: must be a multiple"),
        ({"backend": "fsdp2", "ranks": 2, "tensor_parallel": 2}, "set backend to megatron"),
        ({"backend": "megatron", "sequence_parallel": True}, "tensor_parallel of 2 or more"),
        ({"backend": "megatron", "tensor_parallel": 0}, "train.tensor_parallel=0"),
        ({"backend": "megatron", "collective_timeout_s": 0}, "train.collective_timeout_s=0"),
    ],
    ids=str,
)
def test_a_layout_that_does_not_divide_is_one_line(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        TrainerSettings(**wrong)
    assert "\n" not in str(caught.value)


def test_what_tensor_and_pipeline_parallel_leave_is_data_parallel() -> None:
    assert layout_of("megatron", 8, 2).data == 4
    assert layout_of("megatron", 2, 2) == Layout(tensor=2)
    assert layout_of("fsdp2", 2).data == 2


def test_a_policy_that_does_not_divide_is_refused_before_a_run_starts() -> None:
    policy = Policy.tiny(hidden=48, heads=6)
    check_trainer(policy, TrainerSettings(backend="megatron", ranks=3, tensor_parallel=3))
    with pytest.raises(SettingsError, match=r"tensor_parallel=2: .* key and value heads \(3\)"):
        check_trainer(policy, TrainerSettings(backend="megatron", ranks=2, tensor_parallel=2))
    staged = TrainerSettings(backend="megatron", ranks=3, pipeline_parallel=3)
    with pytest.raises(SettingsError, match=r"pipeline_parallel=3: .* layers \(2\)"):
        check_trainer(Policy.tiny(layers=2), staged)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(capabilities_module, "version", nothing)
    with pytest.raises(MissingExtraError, match=r"rollart-flow\[megatron\]"):
        check_trainer(Policy.tiny(), TrainerSettings(backend="megatron"))


@pytest.mark.parametrize(
    ("there", "layout", "setting"),
    [
        (CPU, Layout(tensor=2, sequence=True), "sequence_parallel"),
        (replace(GPU, transformer_engine=False), Layout(tensor=2, sequence=True), "engine"),
    ],
    ids=str,
)
def test_what_does_not_work_on_a_machine_is_one_line(
    there: Capabilities, layout: Layout, setting: str
) -> None:
    with pytest.raises(SettingsError, match=setting) as caught:
        there.check(layout)
    assert "\n" not in str(caught.value)


def test_what_works_on_a_machine_is_taken() -> None:
    CPU.check(Layout(tensor=2, pipeline=2, data=2))
    GPU.check(Layout(tensor=2, data=2, sequence=True))


def test_this_machine_says_what_it_can_do() -> None:
    assert "CPU" in capabilities(cuda=False).summary
    assert "GPU" in capabilities(cuda=True).summary


def test_a_model_that_does_not_divide_is_refused_by_its_trainer() -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    settings = TrainerSettings(backend="megatron", ranks=4, tensor_parallel=4)
    two = replace(by_itself(), count=4)
    with pytest.raises(SettingsError, match=r"does not divide the model's key and value heads"):
        MegatronTrainer(CONFIG, initial_weights(), grpo(), settings, two)
