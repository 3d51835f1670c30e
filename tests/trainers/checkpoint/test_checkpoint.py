"""Checkpoint folders: whole, verified, without pickled code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.errors import TrainerError
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.checkpoint.checkpoint import (
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import CUT, batch_of

CHECKPOINT = Checkpoint(
    version=3,
    model={"hidden_size": 8},
    settings={"seed": 1},
    learning_rate=0.5,
    reference="abc",
    weights={"a": torch.arange(3.0)},
    state={"rng": torch.arange(4, dtype=torch.uint8), "a/step": torch.tensor(2.0)},
)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", CHECKPOINT)
    found = read_checkpoint(tmp_path / "c")
    plain = replace(found, weights={}, state={})
    assert plain == replace(CHECKPOINT, weights={}, state={})
    assert fingerprint(found.weights) == fingerprint(CHECKPOINT.weights)
    assert fingerprint(found.state) == fingerprint(CHECKPOINT.state)


def test_there_is_no_pickle_in_it(tmp_path: Path) -> None:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT)
    trainer.train_step(1, batch_of(1))
    trainer.save(tmp_path / "c")
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {"model.safetensors", "state.safetensors", "trainer.json"}
    meta = json.loads((tmp_path / "c" / "trainer.json").read_text())
    assert meta["version"] == 1
    assert meta["learning_rate"] == 1e-2
    assert meta["settings"]["optimizer"]["betas"] == [0.9, 0.999]
    assert meta["weights"] == fingerprint(trainer.weights())


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "trainer.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_damage_is_refused_in_one_line(tmp_path: Path, name: str, damage: str) -> None:
    write_checkpoint(tmp_path / "c", CHECKPOINT)
    path = tmp_path / "c" / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else whole[:-1] + b"\x01")
    with pytest.raises(TrainerError, match="checkpoint") as caught:
        read_checkpoint(tmp_path / "c")
    assert "\n" not in str(caught.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", CHECKPOINT)
    path = tmp_path / "c" / "trainer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(TrainerError, match="upgrade"):
        read_checkpoint(tmp_path / "c")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match="was not written") as caught:
        write_checkpoint(tmp_path / "file" / "c", CHECKPOINT)
    assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", CHECKPOINT)
    with pytest.raises(TrainerError, match="was not written"):
        write_checkpoint(tmp_path / "c", replace(CHECKPOINT, version=4, settings={"bad": object()}))
    assert read_checkpoint(tmp_path / "c").version == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_another_learning_rate_may_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT).save(tmp_path / "c")
    other = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), replace(CUT, optimizer=adamw(0.5)))
    other.load(tmp_path / "c")
    assert other.train_step(1, batch_of(1)).learning_rate == 0.5


def test_another_reference_policy_may_not(tmp_path: Path) -> None:
    EmbeddedTrainer(CONFIG, initial_weights(), grpo(kl=0.1), CUT).save(tmp_path / "with")
    EmbeddedTrainer(CONFIG, initial_weights(), grpo(), CUT).save(tmp_path / "without")
    other = EmbeddedTrainer(CONFIG, initial_weights(seed=1), grpo(kl=0.1), CUT)
    for name in ("with", "without"):
        with pytest.raises(TrainerError, match="reference"):
            other.load(tmp_path / name)
    same = EmbeddedTrainer(CONFIG, initial_weights(), grpo(kl=0.1), CUT)
    same.load(tmp_path / "with")
    assert same.version == 0
