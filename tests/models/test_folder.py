"""Model folders are Hugging Face folders: others read ours, we read theirs or say why not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.folder import load_folder, read_config, save_folder
from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.policy import Policy
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.models.tokenizer import tokenizer_files
from rollart_flow.models.version_zero import load_codec, materialize
from tests.models.loaded import load_model
from tests.trainers.mixtures import LATER, MIXED, of_transformers, write_mixture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model."""
    materialize(Policy.tiny(hidden=16, heads=2, max_context=64), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()


def test_transformers_reads_what_we_write(folder: Path) -> None:
    model = load_model(folder)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    codec = load_codec(folder)
    text = "go left, then\nup? leftover"
    tokens = tokenizer(text)["input_ids"]
    assert tuple(tokens) == codec.encode(text)
    assert tokenizer.decode(tokens) == codec.decode(tokens) == text
    conversation = [{"role": "user", "content": text}]
    templated = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)
    assert tuple(templated["input_ids"]) == codec.encode_observation(text, first=True)
    assert (tokenizer.eos_token_id,) == codec.stop_token_ids
    assert tokenizer.pad_token_id == codec.pad_token_id
    batch = torch.tensor([tokens])
    ours = model.logits(model(batch))
    torch.testing.assert_close(ours, theirs(input_ids=batch).logits, atol=1e-5, rtol=1e-5)


def test_we_read_what_transformers_writes_in_shards(folder: Path, tmp_path: Path) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    config, tensors = load_folder(tmp_path / "sharded")
    assert config == read_config(folder)
    wanted = load_folder(folder)[1]
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("config", [MIXED, LATER], ids=["all layers", "all but the first"])
def test_a_mixture_of_experts_is_read_and_written_as_transformers_does(
    config: ModelConfig, tmp_path: Path
) -> None:
    write_mixture(tmp_path / "ours", config)
    model, theirs = load_model(tmp_path / "ours"), of_transformers(tmp_path / "ours")
    assert type(theirs).__name__ == "Qwen3MoeForCausalLM"
    tokens = torch.arange(30)[None]
    ours = model.logits(model(tokens))
    torch.testing.assert_close(ours, theirs(input_ids=tokens).logits, atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    assert read_config(tmp_path / "theirs") == config
    wanted, found = (load_folder(tmp_path / name)[1] for name in ("ours", "theirs"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_gradients_of_a_mixture_of_experts_are_those_of_transformers(tmp_path: Path) -> None:
    write_mixture(tmp_path / "m")
    model, theirs = load_model(tmp_path / "m"), of_transformers(tmp_path / "m")
    tokens = torch.arange(30)[None]
    model.logits(model(tokens)).logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    theirs(input_ids=tokens).logits.logsumexp(-1).sum().backward()
    block: Any
    block, other = model.model.layers[1].mlp, theirs.model.layers[1].mlp
    torch.testing.assert_close(block.gate.weight.grad, other.gate.weight.grad)
    for index, expert in enumerate(block.experts):
        both = torch.cat([expert.gate_proj.weight.grad, expert.up_proj.weight.grad])
        torch.testing.assert_close(both, other.experts.gate_up_proj.grad[index])
        torch.testing.assert_close(
            expert.down_proj.weight.grad, other.experts.down_proj.grad[index]
        )


def test_a_mixture_may_be_made_the_start_of_a_run(tmp_path: Path) -> None:
    write_mixture(tmp_path / "m")
    policy = Policy.from_pretrained(tmp_path / "m", engine="vllm", max_context=128)
    materialize(policy, tmp_path / "v0")
    assert load_folder(tmp_path / "v0")[0] == MIXED


def test_an_untied_model_round_trips_in_bfloat16(folder: Path, tmp_path: Path) -> None:
    config = ModelConfig(
        vocab_size=105,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        rope_theta=5000.0,
    )
    model = Qwen3(config).to(torch.bfloat16)
    model.initialize(1)
    save_folder(tmp_path / "untied", config, model.state_dict(), tokenizer_files(folder))
    read, tensors = load_folder(tmp_path / "untied")
    assert read == config
    assert tensors["lm_head.weight"].dtype == torch.bfloat16
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "untied")
    assert theirs.dtype == torch.bfloat16
    assert torch.equal(theirs.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0, "factor": 2.0}},
    ],
)
def test_what_we_do_not_implement_is_left_to_transformers(
    folder: Path, changes: dict[str, Any]
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert isinstance(read_config(folder), TransformersConfig)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None, "model_type": "lama"}, "does not know model_type 'lama'"),
        ({"architectures": ["T5Model"], "model_type": "t5"}, "no causal language model .*'t5'"),
        ({"architectures": [], "auto_map": {}}, "brings its own code"),
        ({"attention_bias": True, "num_hidden_layers": "two"}, "refuses this config of a qwen3"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, r"lacks a field: .*num_experts"),
    ],
)
def test_what_we_cannot_compute_is_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(SettingsError, match=message) as caught:
        load_folder(folder)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json"):
        load_folder(tmp_path / "nowhere")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "num_hidden_layers": 3}))
    with pytest.raises(WeightsError, match=r"weights lack 'model\.layers\.2"):
        load_folder(folder)
    del values["hidden_size"]
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(SettingsError, match=r"lacks a field: .*hidden_size"):
        load_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(SettingsError, match="is damaged"):
        load_folder(folder)


def test_a_shard_outside_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    shards = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    with pytest.raises(WeightsError, match=r"elsewhere\.safetensors' is not the name of a file"):
        load_folder(folder)


def test_damaged_weights_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.norm.weight": torch.ones(3)}, path)
    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' is torch.float32 \(3,\)"):
        load_folder(folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"model\.safetensors in .* cannot be read"):
        load_folder(folder)
    path.unlink()
    with pytest.raises(SettingsError, match=r"no model\.safetensors"):
        load_folder(folder)


def test_a_folder_that_cannot_be_completed_does_not_appear(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tensors = load_folder(folder)
    files = tokenizer_files(folder)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_folder(tmp_path / "new", config, tensors, files)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_existing_folder_is_not_overwritten(folder: Path) -> None:
    config, tensors = load_folder(folder)
    with pytest.raises(SettingsError, match="exists; give a new folder"):
        save_folder(folder, config, tensors, tokenizer_files(folder))
