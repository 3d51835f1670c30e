"""Rows that another policy sampled, or nobody knows which: imitation, distillation, off-policy."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import Algorithm, conditional_sft, distill, dpo, grpo, sft, topr
from rollart_flow.errors import BatchError, SettingsError
from rollart_flow.models.folder import save_folder
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.models.tokenizer import tiny_tokenizer_files
from rollart_flow.operators.batch_columns import prepare
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.reference import Reference
from tests.builders import batch_table
from tests.models.reference import reference_qwen3
from tests.trainers.cases import (
    CONFIG,
    Row,
    completed,
    initial_weights,
    make_rows,
    reference_logprobs,
    reference_model,
    table,
)
from tests.trainers.conformance import bits

WIDER = replace(CONFIG, hidden_size=48, num_hidden_layers=3)
"""The shape of a teacher, which need not be the policy's."""


def start(algorithm: Algorithm) -> EmbeddedTrainer:
    return EmbeddedTrainer(CONFIG, initial_weights(), algorithm, RankSettings())


def teacher_in(folder: Path, vocabulary: int = CONFIG.vocab_size) -> Qwen3:
    model = Qwen3(replace(WIDER, vocab_size=vocabulary))
    model.initialize(7)
    save_folder(folder, model.config, model.state_dict(), tiny_tokenizer_files(("a",), 64))
    return model


def with_advantage_of_one(rows: list[Row]) -> list[Row]:
    return [replace(row, advantage=[1.0]) for row in rows]


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_distillation_is_the_weighted_divergence_from_the_teacher(
    tmp_path: Path, direction: str
) -> None:
    """In float64, by transformers' own models of policy and teacher."""
    teacher = teacher_in(tmp_path / "teacher")
    rows = with_advantage_of_one(make_rows(8, seed=3, longest=14))
    trainer = start(distill(tmp_path / "teacher", direction=direction, cap=1.5))  # type: ignore[arg-type]
    found = trainer.train_step(1, table(rows))

    policy = reference_model(initial_weights())
    other = reference_qwen3(WIDER, dict(teacher.state_dict())).double()
    loss, count = None, 0
    for row in rows:
        ours, theirs = reference_logprobs(policy, row), reference_logprobs(other, row).detach()
        mu = np.array([row.logprobs[at] for at in row.actions], dtype=np.float32)
        held = ours.detach()
        weight = ((held if direction == "reverse" else theirs) - _tensor(mu)).exp().clamp(max=1.5)
        gap = held - theirs
        each = weight * (gap * (1 + ours - held) if direction == "reverse" else -(ours - theirs))
        loss, count = each.sum() if loss is None else loss + each.sum(), count + len(ours)
    assert loss is not None
    loss = loss / count
    loss.backward()  # type: ignore[no-untyped-call]
    norm = math.sqrt(
        sum(float((p.grad**2).sum()) for p in policy.parameters() if p.grad is not None)
    )
    assert found.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    assert found.grad_norm == pytest.approx(norm, rel=1e-3)


def _tensor(values: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> torch.Tensor:
    return torch.from_numpy(values).double()


def test_a_teacher_of_other_tokens_or_none_is_refused_in_one_line(tmp_path: Path) -> None:
    teacher_in(tmp_path / "teacher", vocabulary=40)
    with pytest.raises(SettingsError, match="vocabulary of 40 tokens and the policy one of 31"):
        start(distill(tmp_path / "teacher"))
    with pytest.raises(SettingsError, match="nothing"):
        start(distill(tmp_path / "nothing"))


def test_a_teacher_can_be_the_reference_of_preferences_and_penalties(tmp_path: Path) -> None:
    teacher = teacher_in(tmp_path / "teacher")
    for algorithm in (
        dpo(teacher=tmp_path / "teacher"),
        grpo(kl=0.1, teacher=tmp_path / "teacher"),
    ):
        found = Reference(CONFIG, initial_weights, algorithm).model
        assert found is not None
        assert found.config == teacher.config


@pytest.mark.parametrize("algorithm", [grpo(), topr(), conditional_sft(), sft()], ids=str)
def test_versions_of_another_run_change_no_bit(algorithm: Algorithm) -> None:
    """The logprobs with which the rows were sampled are all that counts."""
    results = []
    for start_version in (0, 41):
        rows = completed(make_rows(8, seed=2), trained_version=start_version)
        rows = rows.drop_columns(["advantage", "weight", "trained_version", "targets"])
        for name, values in (
            ("group_id", ["a"] * 4 + ["b"] * 4),
            ("policy_version_start", [start_version] * 8),
            ("staleness", [0] * 8),
        ):
            rows = rows.append_column(name, batch_table({name: values})[name])
        trainer = start(algorithm)
        made = prepare(algorithm, rows, 0, trainer.recompute_old_logprobs).rows
        results.append(bits(trainer.train_step(1, made)))
    assert results[0] == results[1]
    assert results[0][1] > 0


def unknown(rows: list[Row]) -> pa.Table:
    """Rows of which the last one has no behavior logprobs, as imported conversations."""
    last = rows[-1]
    nothing = [math.nan if acted else 0.0 for acted in last.action_mask]
    return completed([*rows[:-1], replace(last, logprobs=nothing)])


def test_an_algorithm_that_reads_behavior_logprobs_refuses_rows_without_them() -> None:
    batch = unknown(make_rows(4, seed=1))
    for algorithm in (grpo(), topr(), grpo(ratio_to="old"), topr(ratio_to="old")):
        trainer = start(algorithm)
        with pytest.raises(
            BatchError, match=r"trajectory t3 has behavior logprobs .* not"
        ) as caught:
            trainer.train_step(1, batch)
        assert "\n" not in str(caught.value)
        assert trainer.version == 0


def test_imitation_needs_no_behavior_logprobs() -> None:
    rows = with_advantage_of_one(make_rows(4, seed=1))
    known, without = (start(sft()).train_step(1, each) for each in (completed(rows), unknown(rows)))
    assert (without.loss, without.fingerprint) == (known.loss, known.fingerprint)
    figures = (without.kl, without.ratio_mean, without.ratio_max, without.mismatch_kl, without.ess)
    assert all(each is not None and math.isfinite(each) for each in figures)
    loss = -np.concatenate(
        [reference_logprobs(reference_model(initial_weights()), row).detach() for row in rows]
    ).mean()
    assert without.loss == pytest.approx(loss, rel=1e-5)


def test_a_reward_that_is_higher_by_the_temperature_weighs_e_times_as_much() -> None:
    weights = conditional_sft(temperature=0.5).advantages(
        batch_table({"reward": [0.0, 0.5, 1.0, 1.0], "group_id": ["a", "a", "b", "b"]})
    )
    values = np.concatenate(weights.values)
    assert values.mean() == pytest.approx(1.0)
    assert values[1:] / values[0] == pytest.approx([math.e, math.e**2, math.e**2])
    assert weights.zero_variance_groups == 1
    few = conditional_sft(temperature=0.01, cap=1.5).advantages(
        batch_table({"reward": [0.0, 1.0], "group_id": ["a", "a"]})
    )
    assert np.concatenate(few.values) == pytest.approx([0.0, 1.5], abs=1e-6)
