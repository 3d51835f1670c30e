"""An adapter is known by its content, and what is more than low-rank matrices is refused."""

from pathlib import Path

import pytest
import torch

from rollart_flow import Policy
from rollart_flow.errors import SettingsError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.lora import merged, read_adapter
from rollart_flow.models.version_zero import materialize
from tests.adapters import ALPHA, RANK, say, write_adapter


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "policy"
    materialize(Policy.tiny(hidden=32, heads=2), folder)
    return folder


def test_merged_weights_are_the_weights_and_the_scaled_product(model: Path, tmp_path: Path) -> None:
    wanted = write_adapter(tmp_path / "adapter", model)
    tensors = load_folder(model)[1]
    found = merged(tensors, read_adapter(tmp_path / "adapter"))
    assert found.keys() == tensors.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name
    assert any(not torch.equal(found[name], tensors[name]) for name in tensors)


def test_the_scale_is_what_peft_says(model: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", model)
    assert read_adapter(tmp_path / "adapter").scale == ALPHA / RANK
    say(tmp_path / "adapter", use_rslora=True)
    assert read_adapter(tmp_path / "adapter").scale == ALPHA / RANK**0.5


def test_its_fingerprint_is_of_its_content_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        write_adapter(folder, model)
    assert read_adapter(one).fingerprint == read_adapter(other).fingerprint
    assert read_adapter(one).folder == str(one)
    say(other, lora_alpha=ALPHA + 1)
    assert read_adapter(one).fingerprint != read_adapter(other).fingerprint


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 4096}, "its rank is 4096"),
        ({"r": "many"}, "its rank is 'many'"),
        ({"use_dora": True}, "use_dora is True; convert it to a plain adapter"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_alpha": None}, "float"),
    ],
    ids=str,
)
def test_what_is_no_plain_adapter_is_refused_in_one_line(
    model: Path, tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    write_adapter(tmp_path / "adapter", model)
    say(tmp_path / "adapter", **changes)
    with pytest.raises(SettingsError, match="lora must be the folder of a plain LoRA") as caught:
        read_adapter(tmp_path / "adapter")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_without_its_files_is_refused(model: Path, tmp_path: Path, missing: str) -> None:
    write_adapter(tmp_path / "adapter", model)
    (tmp_path / "adapter" / missing).unlink()
    with pytest.raises(SettingsError, match=missing):
        read_adapter(tmp_path / "adapter")


def test_an_adapter_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    materialize(Policy.tiny(hidden=64), tmp_path / "wider")
    write_adapter(tmp_path / "adapter", tmp_path / "wider")
    with pytest.raises(SettingsError, match="is for another model: the policy has no linear layer"):
        merged(load_folder(model)[1], read_adapter(tmp_path / "adapter"))
