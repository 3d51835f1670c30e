"""The sharded trainer on two gloo ranks: all promises, and what is its own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.models.folder import load_pretrained
from rollart_flow.models.language_model import ModelShape
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.backends.sharded_checkpoint import sharded_weights
from rollart_flow.trainers.batch.passes import passes
from rollart_flow.trainers.checkpoint.checkpoint import checkpoint_adapter
from rollart_flow.trainers.settings import RankSettings
from tests.models.hf.tiny import write_model
from tests.models.vision import save_tiny_vision
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT, batch_of, bits
from tests.trainers.gang import Gang, GangTrainer
from tests.trainers.pictured import pictured_batch
from tests.trainers.ranked import RankedConformance


class TestFsdp2Trainer(RankedConformance):
    """The promises of every trainer of several ranks, and what can go wrong with its shards."""

    settings: ClassVar[Mapping[str, Any]] = {"backend": "fsdp2", "ranks": 2}

    def test_a_damaged_shard_is_refused_by_all(self, tmp_path: Path) -> None:
        several = self.several(grpo(), CUT)
        several.save(tmp_path / "c")
        names = {path.name for path in (tmp_path / "c").iterdir()}
        assert len(names) == 3
        assert all(name.endswith((".safetensors", ".json")) for name in names), "nothing is pickled"
        found, wanted = sharded_weights(tmp_path / "c"), several.weights()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
        shard = next((tmp_path / "c").glob("*.safetensors"))
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(TrainerError, match="damaged"):
            several.load(tmp_path / "c")
        with pytest.raises(TrainerError, match="damaged"):
            sharded_weights(tmp_path / "c")

    def test_a_checkpoint_that_cannot_be_written_fails_in_all(self, tmp_path: Path) -> None:
        several = self.several(grpo(), CUT)
        (tmp_path / "file").write_text("")
        with pytest.raises(TrainerError, match="was not written"):
            several.save(tmp_path / "file" / "c")
        several.save(tmp_path / "c")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral"])
def test_two_ranks_train_any_architecture_as_one_process_does(
    ranks: Gang, kind: str, tmp_path: Path
) -> None:
    write_model(kind, tmp_path / "model")
    config, tensors = load_pretrained(tmp_path / "model")
    plain = RankSettings(optimizer=adamw(1e-3))
    several = GangTrainer(ranks, config, tensors, grpo(), replace(plain, backend="fsdp2", ranks=2))
    one = EmbeddedTrainer(config, tensors, grpo(), plain)
    for step in (1, 2):
        here, there = one.train_step(step, batch_of(step)), several.train_step(step, batch_of(step))
        assert there.loss == pytest.approx(here.loss, abs=1e-5)
        assert there.grad_norm == pytest.approx(here.grad_norm, rel=1e-4)
    several.save(tmp_path / "c")
    wanted = several.weights()
    assert wanted.keys() == one.weights().keys()
    several.load(tmp_path / "c")
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in several.weights().items())


@pytest.mark.parametrize("tokens", [1, 10_000], ids=["a row each", "together"])
def test_two_ranks_train_rows_with_and_without_images_as_one_process_does(
    ranks: Gang, tokens: int, tmp_path: Path
) -> None:
    config, tensors = load_pretrained(save_tiny_vision(tmp_path / "model"))
    plain = RankSettings(optimizer=adamw(1e-3), micro_batch_tokens=tokens)
    several = GangTrainer(ranks, config, tensors, grpo(), replace(plain, backend="fsdp2", ranks=2))
    one = EmbeddedTrainer(config, tensors, grpo(), plain)
    batch = pictured_batch(tmp_path / "model")
    for step in (1, 2):
        here, there = one.train_step(step, batch), several.train_step(step, batch)
        assert there.loss == pytest.approx(here.loss, abs=1e-5)
        assert there.grad_norm == pytest.approx(here.grad_norm, rel=1e-4)


@pytest.mark.parametrize("kind", [None, "llama"])
@pytest.mark.parametrize("rank", [3, 4], ids=["uneven rank", "even rank"])
def test_two_ranks_train_an_adapter_as_one_process_does(
    ranks: Gang, kind: str | None, rank: int, tmp_path: Path
) -> None:
    config: ModelShape = CONFIG
    tensors = initial_weights()
    if kind is not None:
        write_model(kind, tmp_path / "model")
        config, tensors = load_pretrained(tmp_path / "model")
    plain = RankSettings(optimizer=adamw(1e-2), lora_rank=rank, gradient_checkpointing=True)
    sharded = replace(plain, backend="fsdp2", ranks=2)
    several = GangTrainer(ranks, config, tensors, grpo(kl=0.1), sharded)
    one = EmbeddedTrainer(config, tensors, grpo(kl=0.1), plain)
    for step in (1, 2):
        here, there = one.train_step(step, batch_of(step)), several.train_step(step, batch_of(step))
        assert there.loss == pytest.approx(here.loss, abs=1e-5)
        assert there.grad_norm == pytest.approx(here.grad_norm, rel=1e-4)
    merged, wanted = several.weights(), one.weights()
    assert merged.keys() == wanted.keys()
    assert all(torch.allclose(merged[name], wanted[name], atol=1e-5, rtol=0) for name in wanted)
    several.save(tmp_path / "several")
    one.save(tmp_path / "one")
    published = sharded_weights(tmp_path / "several")
    assert published.keys() == one.snapshot_weights().tensors.keys()
    assert checkpoint_adapter(tmp_path / "several") == one.adapter
    found = several.train_step(3, batch_of(3))
    several.load(tmp_path / "several")
    assert bits(several.train_step(3, batch_of(3))) == bits(found)
    several.load(tmp_path / "one")
    expected = one.train_step(3, batch_of(3))
    assert several.train_step(3, batch_of(3)).loss == pytest.approx(expected.loss, abs=1e-5)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_every_row_is_in_one_pass_and_ranks_have_as_many_tokens_and_passes(packed: bool) -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 400, 200)
    minibatch = generator.permutation(200)[:120]
    of = [passes(lengths, minibatch, 1000, rank, 3, packed=packed) for rank in range(3)]
    seen = np.concatenate([rows for each in of for rows in each.own])
    assert sorted(seen.tolist()) == sorted(minibatch.tolist())
    tokens = [sum(int(lengths[rows].sum()) for rows in each.own) for each in of]
    assert max(tokens) - min(tokens) <= 400
    assert len({len(each.own) + len(each.blank) for each in of}) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 2}, "set backend to fsdp2"),
        ({"backend": "fsdp2", "ranks": 0}, "ranks should be"),
        ({"backend": "fsdp3"}, "fsdp2"),
    ],
    ids=str,
)
def test_ranks_that_a_trainer_does_not_have_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        RankSettings(**wrong)
