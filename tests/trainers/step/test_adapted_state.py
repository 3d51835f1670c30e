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
from rollart_flow.weights import fingerprint
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
    result = trainer.train_step(1, batch_of(1))
    after = trainer.weights()
    assert result.fingerprint == fingerprint(after) == trainer.checksum
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    layers = [f"model.layers.{layer}.self_attn" for layer in range(CONFIG.num_hidden_layers)]
    assert changed == {f"{at}.{name}.weight" for at in layers for name in LORA.lora_targets}


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


def test_what_cannot_be_adapted_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no layer has such a name; the model has down_proj, "):
        start(replace(LORA, lora_targets=("query",)))
    with pytest.raises(SettingsError, match="trains no adapter; set backend to embedded"):
        TrainerSettings(backend="fsdp2", lora_rank=4)
