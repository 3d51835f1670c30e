"""Our Qwen3 computes what transformers' does: outputs, gradients and parameter names."""

from typing import Any

import pytest
import torch
from torch import nn

from rollart_flow.errors import SettingsError
from rollart_flow.models.qwen3 import ModelConfig, Qwen3, RMSNorm
from tests.models.reference import reference_qwen3


def _config(tied: bool = True, changes: dict[str, int] | None = None) -> ModelConfig:
    shape: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
    }
    return ModelConfig(**{**shape, **(changes or {})}, tie_word_embeddings=tied)


def _reference(model: Qwen3, dtype: torch.dtype = torch.float32) -> nn.Module:
    reference: nn.Module = reference_qwen3(model.config, model.state_dict()).to(dtype=dtype)
    return reference


def _tokens(config: ModelConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, config.vocab_size, (3, 40), generator=generator)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_gradients_equal_those_of_transformers(tied: bool) -> None:
    model = Qwen3(_config(tied))
    model.initialize(seed=7)
    for parameter in model.parameters():
        parameter.data.mul_(5.0)  # far from the linear regime, so that a wrong norm would show
    reference = _reference(model)
    tokens = _tokens(model.config)
    ours, theirs = model.logits(model(tokens)), reference(input_ids=tokens).logits
    assert ours.abs().max() > 1.0
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)

    for logits in (ours, theirs):
        logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean().backward()
    wanted = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, atol=1e-5, rtol=1e-5)


def test_bfloat16_follows_transformers() -> None:
    model = Qwen3(_config())
    model.initialize(seed=7)
    model.to(torch.bfloat16)
    tokens = _tokens(model.config)
    ours = model.logits(model(tokens)).float()
    theirs = _reference(model, torch.bfloat16)(input_ids=tokens).logits.float()
    torch.testing.assert_close(ours, theirs, atol=6e-3, rtol=6e-3)


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    model = Qwen3(_config())
    model.initialize(seed=7)
    tokens = _tokens(model.config)
    padded = torch.cat([tokens[:, :20], torch.zeros(3, 20, dtype=torch.int64)], 1)
    torch.testing.assert_close(model(padded)[:, :20], model(tokens[:, :20]), atol=1e-6, rtol=1e-5)


def test_a_model_that_was_first_used_for_inference_can_be_trained() -> None:
    model = Qwen3(_config(changes={"head_dim": 12}))  # a shape that no other test has
    model.initialize(seed=7)
    tokens = _tokens(model.config)
    with torch.inference_mode():
        seen = model.logits(model(tokens))
    trained = model.logits(model(tokens))
    assert torch.equal(seen, trained)
    gradients = torch.autograd.grad(trained.sum(), list(model.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("shape", [(250, 64), (37, 4, 16), (5, 7, 33)])
def test_a_norm_in_one_call_has_the_bits_of_its_formula(shape: tuple[int, ...]) -> None:
    """Steps that were recorded with the formula must be recomputed to the bit."""
    torch.manual_seed(0)
    norm = RMSNorm(shape[-1], 1e-6)
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    x, upstream = (torch.randn(shape) for _ in range(2))
    scale = torch.rsqrt((one := x.clone().requires_grad_()).pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.autograd.backward(norm.weight * (one * scale), upstream)
    expected, norm.weight.grad = norm.weight.grad, None
    norm(other := x.clone().requires_grad_()).backward(upstream)
    assert torch.equal(norm(x), norm.weight * (x * scale))
    for found, formula in ((other.grad, one.grad), (norm.weight.grad, expected)):
        assert found is not None
        assert formula is not None
        assert torch.equal(found, formula)


def test_weights_are_a_function_of_the_seed() -> None:
    first, again, other = Qwen3(_config()), Qwen3(_config()), Qwen3(_config())
    first.initialize(seed=3)
    torch.manual_seed(99)
    again.initialize(seed=3)
    other.initialize(seed=4)
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
    ],
)
def test_an_impossible_shape_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        _config(changes=changes)
