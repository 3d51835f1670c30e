"""A LoRA adapter is trained alone, and what is published computes what was trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, inject_adapter_in_model

from rollart_flow.algorithms import grpo
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.models.folder import load_pretrained
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings, TrainerSettings
from rollart_flow.trainers.step.adapted_state import AdaptedState
from rollart_flow.weights import fingerprint
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.whole import AdapterBase, merged_version
from tests.models.hf.tiny import write_model
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import batch_of, bits

LORA = RankSettings(optimizer=adamw(1e-2), lora_rank=4, lora_targets=("q_proj", "v_proj"))


def start(settings: RankSettings = LORA) -> EmbeddedTrainer:
    """A trainer of an adapter."""
    return EmbeddedTrainer(CONFIG, initial_weights(), grpo(), settings)


def logprobs(trainer: EmbeddedTrainer) -> list[float]:
    """Logprobs of a batch under the trainer's weights."""
    found = trainer.recompute_old_logprobs(batch_of(7))["old_logprobs"]
    values: list[float] = found.combine_chunks().flatten().to_pylist()
    return values


def test_only_the_targets_change() -> None:
    trainer, before = start(), initial_weights()
    assert fingerprint(trainer.weights()) == fingerprint(before)
    trainer.train_step(1, batch_of(1))
    after = trainer.weights()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    layers = [f"model.layers.{layer}.self_attn" for layer in range(CONFIG.num_hidden_layers)]
    assert changed == {f"{at}.{name}.weight" for at in layers for name in LORA.lora_targets}


def test_a_version_is_the_adapter_alone_and_its_base_and_scale_give_the_weights() -> None:
    trainer = start(replace(LORA, lora_alpha=12, adapter_base=5))
    result = trainer.train_step(1, batch_of(1))
    published = trainer.snapshot_weights().tensors
    before = initial_weights()
    assert trainer.adapter == AdapterEntry(5, 4, 12, base_checksum=fingerprint(before))
    assert result.fingerprint == fingerprint(published) == trainer.checksum
    assert len(published) == 2 * len(LORA.lora_targets) * CONFIG.num_hidden_layers
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in published
    base = AdapterBase(before, "policy")
    whole, wanted = merged_version(published, trainer.adapter, base), trainer.weights()
    assert whole.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(whole[name], tensor, atol=1e-7, rtol=1e-6)


def test_a_run_that_published_merged_weights_goes_on_doing_so(tmp_path: Path) -> None:
    """As runs of earlier versions did, whose checkpoints the trainer of today takes either way."""
    merging, alone = start(replace(LORA, adapter_base=None)), start()
    result = merging.train_step(1, batch_of(1))
    assert merging.adapter is None
    assert merging.snapshot_weights().tensors.keys() == initial_weights().keys()
    assert result.fingerprint == fingerprint(merging.weights()) == merging.checksum
    merging.save(tmp_path / "checkpoint")
    alone.load(tmp_path / "checkpoint")
    assert fingerprint(alone.weights()) == result.fingerprint
    before, after = merging.train_step(2, batch_of(2)), alone.train_step(2, batch_of(2))
    assert (before.loss, before.grad_norm) == (after.loss, after.grad_norm)


def test_a_checkpoint_over_other_weights_is_refused(tmp_path: Path) -> None:
    trainer = start()
    trainer.train_step(1, batch_of(1))
    trainer.save(tmp_path / "checkpoint")
    other = {name: tensor + 1e-3 for name, tensor in initial_weights().items()}
    with pytest.raises(TrainerError, match="adapter that was trained over other weights"):
        EmbeddedTrainer(CONFIG, other, grpo(), LORA).load(tmp_path / "checkpoint")


def test_published_weights_compute_what_was_trained() -> None:
    trainer = start()
    trainer.train_step(1, batch_of(1))
    plain = EmbeddedTrainer(CONFIG, trainer.weights(), grpo(), RankSettings())
    assert logprobs(trainer) == pytest.approx(logprobs(plain), abs=1e-5)


def test_a_checkpoint_continues_to_the_last_bit(tmp_path: Path) -> None:
    one, other = start(), start()
    one.train_step(1, batch_of(1))
    one.save(tmp_path / "checkpoint")
    other.load(tmp_path / "checkpoint")
    assert bits(one.train_step(2, batch_of(2))) == bits(other.train_step(2, batch_of(2)))
    with pytest.raises(TrainerError, match="another LoRA adapter"):
        start(replace(LORA, lora_rank=8)).load(tmp_path / "checkpoint")


def test_all_linear_layers_of_any_architecture_are_adapted_by_default(tmp_path: Path) -> None:
    write_model("llama", tmp_path / "model")
    config, tensors = load_pretrained(tmp_path / "model")
    trainer = EmbeddedTrainer(config, tensors, grpo(), replace(LORA, lora_targets=()))
    trainer.train_step(1, batch_of(1))
    model: Any = config.build()
    model.load_stored(tensors)
    wanted = get_peft_model(model.causal, LoraConfig(r=4, target_modules="all-linear"))
    adapted = {name for name in wanted.state_dict() if "lora_B" in name}
    after = trainer.weights()
    changed = [name for name in after if not torch.equal(after[name], tensors[name])]
    assert len(changed) == len(adapted)


def test_draws_of_other_threads_do_not_change_a_fresh_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = start().train_step(1, batch_of(1))
    lay: Any = inject_adapter_in_model

    def disturbed(*given: Any, **named: Any) -> Any:
        torch.rand(3)
        return lay(*given, **named)

    monkeypatch.setattr("peft.inject_adapter_in_model", disturbed)
    assert bits(start().train_step(1, batch_of(1))) == bits(alone)
    other = start(replace(LORA, seed=LORA.seed + 1)).train_step(1, batch_of(1))
    assert bits(other) != bits(alone)


def test_what_cannot_be_adapted_is_refused(tmp_path: Path) -> None:
    for targets in (("query",), ("q_proj", "query")):
        with pytest.raises(SettingsError, match=r"no layer is named 'query'; the model has down_p"):
            start(replace(LORA, lora_targets=targets))
    with pytest.raises(SettingsError, match="trains no adapter; set backend to embedded or fsdp2"):
        TrainerSettings(backend="megatron", lora_rank=4)
    with pytest.raises(SettingsError, match="lora_rank"):
        TrainerSettings(lora_rank=-1)
    write_model("gpt2", tmp_path / "model")
    with pytest.raises(SettingsError, match=r"lora_rank: the decoder .* no linear layers to adapt"):
        EmbeddedTrainer(*load_pretrained(tmp_path / "model"), grpo(), LORA)


def test_offloading_frees_the_frozen_weights_too() -> None:
    trainer, plain = start(), EmbeddedTrainer(CONFIG, initial_weights(), grpo(), RankSettings())
    assert isinstance(trainer._train_state, AdaptedState)
    resident = sum(tensor.nbytes for tensor in trainer._train_state.resident())
    assert resident > sum(tensor.nbytes for tensor in plain._train_state.resident())
