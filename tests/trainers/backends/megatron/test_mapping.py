"""Tensors of a Qwen3 under Megatron-core's names, split over ranks and joined again."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.megatron.mapping import entries
from tests.trainers.backends.megatron.tensors import of_rank, weights_of
from tests.trainers.cases import CONFIG

WIDE = replace(CONFIG, num_attention_heads=8, num_key_value_heads=4, intermediate_size=64)
"""Divides over four ranks; its vocabulary of 31 does not, over any number."""


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
