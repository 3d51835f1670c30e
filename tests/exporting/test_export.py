"""`export`: a folder with the policy of a version, which other tools load."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from rollart_flow import export
from rollart_flow.errors import SettingsError, StoreError, TrainerError, WeightsError
from rollart_flow.exporting.shards import write_shards
from rollart_flow.models.folder import load_folder, read_config
from rollart_flow.models.lora import read_adapter
from rollart_flow.models.version_zero import load_codec
from rollart_flow.store import Run
from rollart_flow.store.info import write_info
from rollart_flow.store.layout import adapter_uri, policy_uri, weights_uri
from rollart_flow.weights.registry import stored_weights
from rollart_flow.weights.terms import FolderTerm
from tests.adapters import write_adapter
from tests.copies import copied, nothing


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet: Any = transformers_logging.disable_progress_bar
    quiet()


def logits(run: Run, version: int, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of the run's policy at a version that its weight store has."""
    model = read_config(policy_uri(run.uri)).build()
    model.load_stored(stored_weights(weights_uri(run.uri)).read(version))
    return model.logits(model(tokens))


@pytest.mark.parametrize("version", [3, 4])
def test_transformers_computes_the_logits_of_the_runs_policy(
    version: int, finished_run: Run, tmp_path: Path
) -> None:
    exported = export(finished_run, tmp_path / "model", version=version)
    assert (exported.version, exported.source) == (version, "weights")
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokens = torch.arange(40)[None] % theirs.config.vocab_size
    wanted = logits(finished_run, version, tokens)
    torch.testing.assert_close(theirs(input_ids=tokens).logits, wanted, atol=1e-5, rtol=1e-5)
    assert exported.size_bytes == sum(
        tensor.nbytes for tensor in load_file(tmp_path / "model" / "model.safetensors").values()
    )


def test_tokenizer_template_and_sampling_are_those_of_the_run(
    finished_run: Run, tmp_path: Path
) -> None:
    export(finished_run.uri, tmp_path / "model")
    codec = load_codec(policy_uri(finished_run.uri))
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "model")
    said = [{"role": "user", "content": "go left"}]
    templated = tokenizer.apply_chat_template(said, add_generation_prompt=True)
    assert tuple(templated["input_ids"]) == codec.encode_observation("go left", first=True)
    config: Any = GenerationConfig.from_pretrained(tmp_path / "model")
    assert (config.do_sample, config.temperature, config.top_p, config.top_k) == (True, 1, 1, 0)
    assert config.max_new_tokens == 6
    assert tuple(config.eos_token_id) == codec.stop_token_ids


def test_the_newest_version_is_the_default_and_one_of_a_checkpoint_is_the_same(
    finished_run: Run, tmp_path: Path
) -> None:
    stored = export(finished_run, tmp_path / "stored")
    kept = copied(finished_run, tmp_path / "kept", without=("weights",))
    checkpoint = export(kept, tmp_path / "checkpoint")
    assert (stored.version, checkpoint.version) == (4, 4)
    assert (stored.source, checkpoint.source) == ("weights", "checkpoint")
    both = [load_file(tmp_path / name / "model.safetensors") for name in ("stored", "checkpoint")]
    assert both[0].keys() == both[1].keys()
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])


def test_versions_of_a_run_that_was_resumed_are_found_by_their_numbers(
    finished_run: Run, tmp_path: Path
) -> None:
    run = copied(finished_run, tmp_path / "resumed")
    suffix = FolderTerm(1, 3).suffix
    for kind, name in (("weights", "v000004"), ("checkpoints", "000004")):
        folder = Path(run.uri) / kind / name
        folder.rename(folder.with_name(f"{name}{suffix}"))
    assert export(run, tmp_path / "stored").source == "weights"
    shutil.rmtree(Path(run.uri) / "weights")
    checkpoint = export(run, tmp_path / "checkpoint")
    assert (checkpoint.version, checkpoint.source) == (4, "checkpoint")


def test_the_card_says_where_the_weights_come_from(finished_run: Run, tmp_path: Path) -> None:
    export(finished_run, tmp_path / "model", version=3)
    _, front, card = (tmp_path / "model" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert "license" not in yaml.safe_load(front)
    assert "# small, version 3" in card
    for name, value in (("seed", 0), ("domains", "frozenlake, arithmetic"), ("algorithm", "grpo")):
        assert f"| {name} | {value} |" in card
    scores = finished_run.evaluations.collect().filter(policy_version=3)
    for row in scores.iter_rows(named=True):
        ends = " to ".join(str(round(row[end], 4)) for end in ("low", "high"))
        said = f"| frozenlake | {row['metric']} | {round(row['value'], 4)} | {ends} | {row['n']} |"
        assert said in card
    assert f"| torch | {finished_run.info.versions['torch']} |" in card
    settings = json.loads(card.split("```json\n")[1].split("```")[0])
    assert settings == finished_run.info.settings


def test_a_version_that_is_gone_is_one_line_with_those_that_are_there(
    finished_run: Run, tmp_path: Path
) -> None:
    kept = copied(finished_run, tmp_path / "kept", without=("weights",))
    with pytest.raises(SettingsError, match="no weights of version 3; it holds 0, 2, 4 "):
        export(kept, tmp_path / "model", version=3)
    with pytest.raises(SettingsError, match="no weights of version 5; it holds 0, 2"):
        export(finished_run, tmp_path / "model", version=5)
    assert not (tmp_path / "model").exists()


def test_the_start_is_there_as_long_as_the_run_is(finished_run: Run, tmp_path: Path) -> None:
    kept = copied(finished_run, tmp_path / "kept", without=("weights",))
    assert export(kept, tmp_path / "model", version=0).source == "policy"
    assert load_file(tmp_path / "model" / "model.safetensors").keys()


def test_an_unfinished_run_gives_its_newest_version_or_says_that_it_has_none(
    finished_run: Run, tmp_path: Path
) -> None:
    def before(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["policy_version"] < 4]

    stopped = copied(finished_run, tmp_path / "stopped", {"weights": before})
    assert export(stopped, tmp_path / "model").version == 3
    empty = copied(finished_run, tmp_path / "empty", {"weights": nothing})
    with pytest.raises(SettingsError, match="run empty has no version to export yet; `rollart res"):
        export(empty, tmp_path / "other")


def test_an_existing_folder_is_refused_and_left_alone(finished_run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="exists; give a new folder"):
        export(finished_run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(SettingsError, match="is not on this machine"):
        export(finished_run, "s3://bucket/model")
    with pytest.raises(StoreError, match="cannot write"):
        export(finished_run, tmp_path / "notes.txt" / "model")


@pytest.mark.parametrize(
    ("without", "file", "error"),
    [((), "weights/v000004", WeightsError), (("weights",), "checkpoints/000004", TrainerError)],
)
def test_damaged_weights_are_one_line_and_leave_nothing(
    without: tuple[str, ...], file: str, error: type[Exception], finished_run: Run, tmp_path: Path
) -> None:
    damaged = copied(finished_run, tmp_path / "damaged", without=without)
    path = Path(damaged.uri) / file / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(error, match=r"damaged: .* checksum"):
        export(damaged, tmp_path / "model", version=4)
    assert {path.name for path in tmp_path.iterdir()} == {"damaged"}


def test_without_an_adapter_none_can_be_merged(finished_run: Run, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run small has no LoRA adapter"):
        export(finished_run, tmp_path / "model", lora=True)


def test_a_merged_adapter_computes_what_the_adapted_policy_does(
    finished_run: Run, tmp_path: Path
) -> None:
    kept = copied(finished_run, tmp_path / "kept")
    policy = Path(policy_uri(kept.uri))
    merged = write_adapter(Path(adapter_uri(kept.uri)), policy)
    settings = json.loads(json.dumps(kept.info.settings))
    fingerprint = read_adapter(adapter_uri(kept.uri)).fingerprint
    settings["nodes"]["evaluate"]["lora"] = {"fingerprint": fingerprint}
    write_info(kept.uri, replace(kept.info, settings=settings))

    assert export(kept, tmp_path / "plain", version=0).lora is False
    assert export(kept, tmp_path / "merged", version=0, lora=True).lora is True
    weights = {
        name: load_file(tmp_path / name / "model.safetensors") for name in ("plain", "merged")
    }
    assert weights["merged"].keys() == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(weights["merged"][name], tensor, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(weights["plain"][n], t) for n, t in load_folder(policy)[1].items())
    card = (tmp_path / "plain" / "README.md").read_text()
    assert "without any adapter" in card
    assert "Measured with the LoRA adapter." in card


def test_large_weights_are_several_files_that_transformers_joins(
    finished_run: Run, tmp_path: Path
) -> None:
    export(finished_run, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    size, dtype = write_shards(tensors, tmp_path / "model", shard_bytes=20_000)
    assert (size, dtype) == (sum(tensor.nbytes for tensor in tensors.values()), "float32")
    (tmp_path / "model" / "model.safetensors").unlink()
    files = sorted((tmp_path / "model").glob("model-*-of-*.safetensors"))
    assert len(files) > 2
    found: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in tensors.items())
    largest = max(tensor.nbytes for tensor in tensors.values())
    assert all(file.stat().st_size < max(20_000, largest) + 4_000 for file in files)
