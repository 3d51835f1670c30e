"""Policies are settings until they are made; what is made is whole, repeatable and standard."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollart_flow.engines.registry import check_engine
from rollart_flow.errors import SettingsError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import load_codec, materialize
from rollart_flow.trainers.build import check_trainer
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.types import Image
from rollart_flow.types.messages import user


def test_naming_a_policy_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rollart_flow.models.policy import Policy; Policy.tiny();"
        "print({'torch', 'tokenizers', 'transformers', 'jinja2', 'ray'} & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "set()"


def test_a_policy_survives_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for policy in (
        Policy.tiny(hidden=32, words=("yes", "no"), seed=3, warm_start=20),
        Policy.tiny(images=True, engine="transformers"),
        Policy.from_pretrained(tmp_path, dtype="bfloat16", max_batch=8),
        Policy.from_pretrained(tmp_path, device="cuda", eager=True),
        Policy.from_pretrained(tmp_path, chat_format="glm", template_options={"deep": [1, None]}),
    ):
        assert Policy(**json.loads(json.dumps(asdict(policy)))) == policy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 66}, r"hidden \(66\) must be a multiple of heads \(4\)"),
        ({"layers": 0}, "layers must be a whole number from 1"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16"),
        ({"device": "gpu"}, "device must be one of cpu, cuda, not 'gpu'"),
        ({"eager": 1}, "eager must be true or false, not 1"),
        ({"engine": ""}, "engine must be the name"),
        ({"template_options": {"a": {1}}}, "template_options must be an object of JSON values"),
        ({"template_options": {"tools": []}}, "template_options must not have 'tools'"),
        ({"words": ("two words",)}, "words must be made of ASCII letters"),
        ({"max_context": 1}, "max_context must be a whole number from 8"),
        ({"max_batch": 0}, "max_batch must be a whole number from 1"),
    ],
)
def test_an_impossible_policy_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Policy.tiny(**settings)


def test_a_gpu_computes_in_bfloat16_unless_the_policy_says_otherwise() -> None:
    assert Policy.tiny().computes_in == "float32"
    assert Policy.tiny(device="cuda").computes_in == "bfloat16"
    assert Policy.tiny(device="cuda", dtype="float32").computes_in == "float32"
    assert Policy.tiny(dtype="bfloat16").computes_in == "bfloat16"


def test_a_pretrained_policy_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no config\.json in .*missing"):
        Policy.from_pretrained(tmp_path / "missing").located()


def test_version_0_is_a_function_of_the_settings(tmp_path: Path) -> None:
    policy = Policy.tiny(hidden=16, heads=2, seed=5)
    for name in ("one", "two"):
        materialize(policy, tmp_path / name)
    materialize(Policy.tiny(hidden=16, heads=2, seed=6), tmp_path / "other")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    for name in files:
        first = (tmp_path / "one" / name).read_bytes()
        assert (tmp_path / "two" / name).read_bytes() == first
    weights = (tmp_path / "other" / "model.safetensors").read_bytes()
    assert weights != (tmp_path / "one" / "model.safetensors").read_bytes()


def test_the_default_policy_is_as_small_as_it_says(tmp_path: Path) -> None:
    materialize(Policy.tiny(), tmp_path / "model")
    config, tensors = load_folder(tmp_path / "model")
    assert 140_000 < sum(tensor.numel() for tensor in tensors.values()) < 170_000
    assert config.vocab_size == load_codec(tmp_path / "model").vocab_size
    assert config.max_position_embeddings == 512


def test_a_pretrained_policy_is_its_folder(tmp_path: Path) -> None:
    materialize(Policy.tiny(hidden=16, heads=2, max_context=64), tmp_path / "source")
    policy = Policy.from_pretrained(tmp_path / "source", max_context=64)
    materialize(policy, tmp_path / "copy")
    config, tensors = load_folder(tmp_path / "source")
    copied_config, copied = load_folder(tmp_path / "copy")
    assert copied_config == config
    assert copied.keys() == tensors.keys()
    assert all(torch.equal(copied[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(SettingsError, match=r"max_context \(2048\) exceeds the model's 64"):
        materialize(Policy.from_pretrained(tmp_path / "source"), tmp_path / "again")


def test_a_folder_keeps_how_its_policy_converses(tmp_path: Path) -> None:
    options = {"greeting": "hello"}
    materialize(Policy(chat_format="hermes", template_options=options), tmp_path / "model")
    kept = json.loads((tmp_path / "model" / "chat.json").read_text())
    assert (kept["format"], kept["options"]) == ("hermes", options)
    materialize(Policy.tiny(), tmp_path / "plain")
    assert not (tmp_path / "plain" / "chat.json").exists()


def test_an_unknown_chat_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="chat_format must be one of auto, harmony"):
        materialize(Policy(chat_format="hermit"), tmp_path / "model")


def test_a_fresh_policy_that_takes_images_is_a_function_of_its_settings(tmp_path: Path) -> None:
    policy = Policy.tiny(images=True, hidden=32, engine="transformers")
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        materialize(replace(policy, seed=seed), tmp_path / name)
    (config, one), (_, again), (_, other) = (
        load_folder(tmp_path / name) for name in ("one", "again", "other")
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert config.head_dim == policy.head_dim == 8
    codec = load_codec(tmp_path / "one")
    frame = Image.of(np.zeros((24, 32, 3), np.uint8))
    assert codec.pictures is not None
    assert codec.pictures.tokens(frame) == 3 * 4
    shown = codec.converse().observe([user("go", frame)])
    assert shown.count(codec.pictures.placeholder) == 3 * 4
    assert codec.encode_observation("go", first=True) == load_codec(
        tmp_path / "one"
    ).converse().observe("go")


def test_what_takes_images_is_told_without_its_weights(tmp_path: Path) -> None:
    assert not Policy.tiny().takes_images
    assert Policy.tiny(images=True).takes_images
    assert Policy.tiny(images=True).foreign
    for settings, message in (
        ({"images": 1}, "images must be true or false"),
        ({"images": True, "hidden": 36}, "multiple of 8 x heads"),
        ({"images": True, "path": str(tmp_path)}, "made from scratch"),
    ):
        with pytest.raises(SettingsError, match=message):
            Policy(**settings)
    with pytest.raises(SettingsError, match=r"policy\.engine=vllm, or transformers"):
        check_engine(Policy.tiny(images=True))
    with pytest.raises(SettingsError, match="backend to embedded or fsdp2"):
        check_trainer(
            Policy.tiny(images=True, engine="transformers"), TrainerSettings(backend="megatron")
        )
