"""The sharded trainer on two gloo ranks: all promises, and the embedded one's numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import grpo, ppo
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers import adamw
from rollart_flow.trainers.base import Trainer
from rollart_flow.trainers.checkpoint import write_checkpoint
from rollart_flow.trainers.embedded import EmbeddedTrainer
from rollart_flow.trainers.passes import passes
from rollart_flow.trainers.registry import TrainerSettings
from rollart_flow.types import Sampling
from rollart_flow.weights import fingerprint
from tests.trainers.cases import CONFIG, completed, initial_weights, make_rows, table
from tests.trainers.conformance import CUT, TrainerConformance, batch_of, bits
from tests.trainers.gang import Gang, GangTrainer, gang

WHOLE = TrainerSettings(optimizer=adamw(1e-3), micro_batch_tokens=100)
COMPARED = (
    "loss", "grad_norm", "ratio_mean", "ratio_max", "clip_fraction", "kl", "entropy",
    "value_loss", "mismatch_kl", "mismatch_ratio_max", "ess",
)  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> Iterator[Gang]:
    """Two processes for all tests of the module."""
    with gang() as started:
        yield started


def sharded(settings: TrainerSettings) -> TrainerSettings:
    return replace(settings, backend="fsdp2", ranks=2)


class TestFsdp2Trainer(TrainerConformance):
    """The promises of every trainer."""

    @pytest.fixture(autouse=True)
    def _ranks(self, ranks: Gang) -> None:
        self.ranks = ranks

    def make_trainer(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: TrainerSettings,
    ) -> Trainer:
        return GangTrainer(self.ranks, config, tensors, algorithm, sharded(settings))


def both(
    ranks: Gang, algorithm: Algorithm, settings: TrainerSettings
) -> tuple[GangTrainer, EmbeddedTrainer]:
    """The same trainer in two processes and in this one."""
    weights = initial_weights()
    return (
        GangTrainer(ranks, CONFIG, weights, algorithm, sharded(settings)),
        EmbeddedTrainer(CONFIG, weights, algorithm, settings),
    )


ALGORITHMS = [
    grpo(),
    grpo(kl=0.1, entropy=0.1),
    ppo(reference=1, kl=0.05),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("cut", [{}, {"minibatches": 3, "epochs": 2, "mismatch": True}], ids=str)
def test_its_steps_are_those_of_the_embedded_trainer(
    ranks: Gang, algorithm: Algorithm, cut: dict[str, Any]
) -> None:
    several, one = both(ranks, algorithm, replace(WHOLE, **cut))
    for step in (1, 2):
        batch = completed(make_rows(10, seed=step), seed=step)
        found, expected = (asdict(trainer.train_step(step, batch)) for trainer in (several, one))
        for name in COMPARED:
            if expected[name] is None:
                assert found[name] is None, name
            else:
                assert found[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-5), name
        assert [each["tokens"] for each in found["lags"] or ()] == [
            each["tokens"] for each in expected["lags"] or ()
        ]
        assert '"ranks": 2' in found["kernels"]
    assert several.assess(batch)["old_logprobs"].combine_chunks().flatten().to_pylist() == (
        pytest.approx(
            one.assess(batch)["old_logprobs"].combine_chunks().flatten().to_pylist(), abs=1e-5
        )
    )


def test_its_gradient_is_that_of_the_embedded_trainer(ranks: Gang) -> None:
    """With plain descent in place of Adam's signs: one step moves each weight by its gradient."""
    settings = replace(WHOLE, optimizer=adamw(1.0, betas=(0.0, 0.0), eps=1e6, clip_norm=0))
    several, one = both(ranks, grpo(), settings)
    losses = [trainer.train_step(1, batch_of(1)).loss for trainer in (several, one)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    start, found, expected = initial_weights(), several.weights(), one.weights()
    moved = max(float((expected[name] - start[name]).abs().max()) for name in start)
    assert moved > 0
    for name in start:
        difference = float((found[name] - expected[name]).abs().max())
        assert difference <= 1e-6, name


def test_fewer_rows_than_ranks_still_train(ranks: Gang) -> None:
    several, one = both(ranks, grpo(), replace(WHOLE, minibatches=3))
    batch = table(make_rows(3, seed=1))
    found, expected = (trainer.train_step(1, batch) for trainer in (several, one))
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)


def test_what_one_rank_cannot_score_is_refused_by_all(ranks: Gang) -> None:
    several, _ = both(ranks, grpo(), WHOLE)
    rows = make_rows(6, seed=1)
    sick = replace(rows[3], sampling=Sampling(allowed_token_ids=(0,)))
    assert any(rows[3].token_ids[at] for at in rows[3].actions)
    with pytest.raises(TrainerError, match="could not draw"):
        several.train_step(1, table([*rows[:3], sick, *rows[4:]]))
    assert several.version == 0
    assert several.train_step(1, batch_of(1)).step == 1


@pytest.mark.parametrize("algorithm", [grpo(), ppo(reference=1, kl=0.05)], ids=["grpo", "ppo"])
def test_one_process_goes_on_from_two_and_two_from_one(
    ranks: Gang, tmp_path: Path, algorithm: Algorithm
) -> None:
    from rollart_flow.trainers.fsdp2 import Fsdp2Trainer

    def batch(step: int) -> Any:
        return completed(make_rows(10, seed=step), seed=step)

    several, _ = both(ranks, algorithm, CUT)
    for step in (1, 2):
        several.train_step(step, batch(step))
    several.save(tmp_path / "two")
    assert not list(tmp_path.glob(".*"))
    one = Fsdp2Trainer(CONFIG, initial_weights(), algorithm, replace(CUT, backend="fsdp2"))
    one.load(tmp_path / "two")
    assert one.version == 2
    assert fingerprint(one.weights()) == fingerprint(several.weights())
    one.save(tmp_path / "one")
    again, _ = both(ranks, algorithm, CUT)
    again.load(tmp_path / "one")
    assert bits(again.train_step(3, batch(3))) == bits(several.train_step(3, batch(3)))
    other, _ = both(ranks, algorithm, CUT)
    other.load(tmp_path / "two")
    found, expected = (trainer.train_step(3, batch(3)) for trainer in (one, other))
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)


def test_a_checkpoint_of_the_embedded_trainer_is_one_to_go_on_from(
    ranks: Gang, tmp_path: Path
) -> None:
    several, one = both(ranks, grpo(), CUT)
    one.train_step(1, batch_of(1))
    one.save(tmp_path / "embedded")
    several.load(tmp_path / "embedded")
    assert fingerprint(several.weights()) == fingerprint(one.weights())
    found, expected = (trainer.train_step(2, batch_of(2)) for trainer in (several, one))
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)


def test_a_snapshot_of_one_process_is_one_to_fork_from(tmp_path: Path) -> None:
    from rollart_flow.trainers.fsdp2 import Fsdp2Trainer

    alone = replace(CUT, backend="fsdp2")
    parent = Fsdp2Trainer(CONFIG, initial_weights(), grpo(), alone)
    parent.train_step(1, batch_of(1))
    write_checkpoint(tmp_path / "c", parent.snapshot())
    child = Fsdp2Trainer(CONFIG, initial_weights(seed=3), grpo(), alone)
    child.load(tmp_path / "c")
    assert bits(child.train_step(2, batch_of(2))) == bits(parent.train_step(2, batch_of(2)))


def test_a_damaged_shard_is_refused_by_all(ranks: Gang, tmp_path: Path) -> None:
    several, _ = both(ranks, grpo(), CUT)
    several.save(tmp_path / "c")
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert len(names) == 3
    assert all(name.endswith((".safetensors", ".json")) for name in names), "nothing is pickled"
    shard = next((tmp_path / "c").glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TrainerError, match="damaged"):
        several.load(tmp_path / "c")


def test_a_checkpoint_that_cannot_be_written_fails_in_all(ranks: Gang, tmp_path: Path) -> None:
    several, _ = both(ranks, grpo(), CUT)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match="was not written"):
        several.save(tmp_path / "file" / "c")
    several.save(tmp_path / "c")


def test_every_row_is_in_one_pass_and_ranks_have_as_many_tokens_and_passes() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 400, 200)
    minibatch = generator.permutation(200)[:120]
    of = [passes(lengths, minibatch, 1000, rank, 3) for rank in range(3)]
    seen = np.concatenate([rows for each in of for rows in each.own])
    assert sorted(seen.tolist()) == sorted(minibatch.tolist())
    tokens = [sum(int(lengths[rows].sum()) for rows in each.own) for each in of]
    assert max(tokens) - min(tokens) <= 400
    assert len({len(each.own) + len(each.blank) for each in of}) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": 2}, "set backend to fsdp2"),
        ({"backend": "fsdp2", "ranks": 0}, "train.ranks"),
        ({"backend": "fsdp3"}, "fsdp2"),
    ],
    ids=str,
)
def test_ranks_that_a_trainer_does_not_have_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        TrainerSettings(**wrong)
