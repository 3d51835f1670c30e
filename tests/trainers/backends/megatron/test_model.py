"""The model that Megatron-core computes is a Qwen3."""

from dataclasses import replace

import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.errors import SettingsError
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.trainers.backends.megatron.capabilities import Capabilities
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.ranks import by_itself
from rollart_flow.trainers.settings import RankSettings
from tests.trainers.backends.megatron.tensors import weights_of
from tests.trainers.cases import CONFIG, initial_weights, make_rows, reference_model

WIDE = replace(CONFIG, num_attention_heads=8, num_key_value_heads=4, intermediate_size=64)
"""Divides over four ranks; its vocabulary of 31 does not, over any number."""


CPU = Capabilities(cuda=False, transformer_engine=False, stack=False)


GPU = Capabilities(cuda=True, transformer_engine=True, stack=True)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_one_rank_are_those_of_transformers(tied: bool) -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    config = replace(CONFIG, tie_word_embeddings=tied)
    whole = initial_weights() if tied else weights_of(config)
    trainer = MegatronTrainer(config, whole, grpo(), RankSettings(backend="megatron"))
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


def test_a_model_that_does_not_divide_is_refused_by_its_trainer() -> None:
    from rollart_flow.trainers.backends.megatron.trainer import MegatronTrainer

    settings = RankSettings(backend="megatron", ranks=4, tensor_parallel=4)
    two = replace(by_itself(), count=4)
    with pytest.raises(SettingsError, match=r"does not divide the model's key and value heads"):
        MegatronTrainer(CONFIG, initial_weights(), grpo(), settings, two)
