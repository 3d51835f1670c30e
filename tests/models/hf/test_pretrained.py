"""Weights that somebody else saved are read whole, or refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.folder import load_folder, load_pretrained
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize, vocabulary_of
from tests.models.hf.tiny import VOCABULARY, write_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama."""
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()
    write_model("llama", tmp_path / "model")
    return tmp_path / "model"


def test_version_0_is_the_folder(folder: Path, tmp_path: Path) -> None:
    materialize(Policy.from_pretrained(folder, engine="vllm", max_context=64), tmp_path / "v0")
    (config, tensors), (_, wanted) = load_folder(tmp_path / "v0"), load_pretrained(folder)
    assert config.vocab_size == vocabulary_of(tmp_path / "v0") == VOCABULARY
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)


def test_missing_weights_are_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"lack 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="cannot be read") as caught:
        load_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "intermediate_size": 50}))
    with pytest.raises(WeightsError, match="mlp"):
        load_pretrained(folder)


def test_a_tokenizer_without_a_template_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    del values["chat_template"]
    path.write_text(json.dumps(values))
    with pytest.raises(SettingsError, match="has no chat template"):
        materialize(Policy.from_pretrained(folder, max_context=64), tmp_path / "v0")
