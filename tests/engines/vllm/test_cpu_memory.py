"""The KV cache on a CPU is what fits into the machine, or is refused in one line."""

from pathlib import Path

import pytest

from rollart_flow.engines.vllm.cpu_memory import (
    available_bytes,
    cache_bytes,
    token_bytes,
    weights_bytes,
)
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.errors import SettingsError
from rollart_flow.models.hf.config import TransformersConfig

QWEN = TransformersConfig.parse(
    {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
)  # fmt: skip
"""Shape of Qwen2.5-0.5B-Instruct."""
LONGEST = 32768
SETTINGS = VllmSettings(dtype="bfloat16", max_batch=64)
GIB = 1 << 30


def size(context: int, available: int, weights: int = 0) -> int:
    return cache_bytes(QWEN, SETTINGS, context, available=available, weights=weights)


def test_the_cache_holds_the_longest_chains_in_whole_blocks() -> None:
    assert token_bytes(QWEN, SETTINGS) == 2 * 24 * 2 * 64 * 2
    blocks = LONGEST // 128 * (64 + 64) + 1
    assert size(LONGEST, 64 * GIB) == blocks * 128 * 12_288  # 48 GiB
    assert size(129, 64 * GIB) == (2 * 128 + 1) * 128 * 12_288
    assert token_bytes(QWEN, VllmSettings(dtype="float32")) == 2 * token_bytes(QWEN, SETTINGS)


def test_as_many_finished_chains_are_kept_as_fit() -> None:
    chain = LONGEST * 12_288
    assert size(LONGEST, 41 * GIB, weights=GIB) == (64 + 42) * chain + 128 * 12_288
    assert 24 * GIB < size(LONGEST, 25 * GIB) < 25 * GIB
    assert size(LONGEST, 64 * chain + 128 * 12_288) == 64 * chain + 128 * 12_288


def test_what_does_not_fit_is_one_line_with_a_context_that_does() -> None:
    with pytest.raises(SettingsError) as caught:
        size(LONGEST, 16 * GIB, weights=GIB)
    said = str(caught.value)
    assert "reserves 24.0 GiB" in said
    assert "has 16.0 GiB for them and 1.0 GiB of weights" in said
    assert "policy.max_context=20352 fits" in said
    assert "\n" not in said
    assert size(20352, 16 * GIB, weights=GIB) <= 15 * GIB
    with pytest.raises(SettingsError):
        size(20352 + 128, 16 * GIB, weights=GIB)


def test_a_machine_that_is_too_small_for_any_context_needs_fewer_chains() -> None:
    with pytest.raises(SettingsError, match=r"take a lower policy\.max_batch as well"):
        size(LONGEST, GIB, weights=GIB - 1000)


def test_sizes_are_those_of_the_machine_and_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(b"12345")
    (tmp_path / "model-2.safetensors").write_bytes(b"123")
    (tmp_path / "config.json").write_text("{}")
    assert weights_bytes(tmp_path) == 8
    assert available_bytes() > 0
    said = tmp_path / "meminfo"
    said.write_text("MemTotal:       10 kB\nMemAvailable:       7 kB\n")
    assert available_bytes(said) == 7 * 1024
    said.write_text("MemTotal:       10 kB\n")
    with pytest.raises(ValueError, match="has no MemAvailable"):
        available_bytes(said)
