"""Loss and gradient of a batch: those of the formula, however it is padded, cut and ordered."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.algorithms.losses import Clipped
from rollart_flow.trainers.batch.training_batch import read_batch
from rollart_flow.trainers.step.kernels import pinned
from rollart_flow.trainers.step.update import Tally, Updater
from rollart_flow.types import Sampling
from tests.trainers.cases import (
    Row,
    initial_weights,
    make_rows,
    model_of,
    on_policy,
    reference_entropy,
    reference_logprobs,
    reference_model,
    table,
)

Gradient = dict[str, torch.Tensor]


def gradient_of(
    rows: Sequence[Row],
    algorithm: Algorithm,
    *,
    micro_batch_tokens: int = 4096,
    minibatches: Sequence[Sequence[int]] | None = None,
) -> tuple[Tally, Gradient]:
    """What the trainer computes; the reference policy is one of other weights."""
    model = model_of(initial_weights())
    reference = model_of(initial_weights(seed=1)) if algorithm.kl > 0 else None
    batch = read_batch(table(rows))
    tally = Tally()
    with pinned(1):
        for part in minibatches or [range(len(rows))]:
            updater = Updater(model, algorithm, reference, micro_batch_tokens)
            updater.accumulate(batch, np.array(part), len(part) / len(rows), tally)
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return tally, gradient


def reference_loss(rows: Sequence[Row], algorithm: Algorithm) -> tuple[float, Gradient]:
    """The same in float64, token by token from the formula, on transformers' model."""
    clip = algorithm.loss
    assert isinstance(clip, Clipped)
    model = reference_model(initial_weights())
    other = reference_model(initial_weights(seed=1))
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    for row in rows:
        logprobs = reference_logprobs(model, row)
        entropies = reference_entropy(model, row)
        towards = reference_logprobs(other, row).detach()
        for index, at in enumerate(row.actions):
            advantage = row.advantage[0] if len(row.advantage) == 1 else row.advantage[index]
            ratio = (logprobs[index] - row.logprobs[at]).exp()
            clipped = ratio.clamp(1 - clip.clip, 1 + clip.clip_high)
            gap = towards[index] - logprobs[index]
            loss = -torch.minimum(ratio * advantage, clipped * advantage)
            loss = loss + algorithm.kl * (gap.exp() - gap - 1)
            total = total + row.weight * (loss - algorithm.entropy * entropies[index])
            count += 1
    mean = total / count
    mean.backward()  # type: ignore[no-untyped-call]
    gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return float(mean.detach()), gradient


def assert_close(found: Gradient, expected: Gradient, tolerance: float) -> None:
    """Every tensor of a gradient within a part of the largest element of the whole gradient."""
    assert found.keys() == expected.keys()
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        assert float((found[name] - tensor).abs().max()) <= tolerance * largest, name


def mixed_rows() -> list[Row]:
    """Rows of several samplings and weights."""
    rows = make_rows(6, 1) + make_rows(
        6, 2, sampling=Sampling(temperature=0.8, top_k=5, allowed_token_ids=tuple(range(4, 25)))
    )
    return [replace(row, weight=0.5 + index / 8) for index, row in enumerate(rows)]


@pytest.mark.parametrize(
    "algorithm", [grpo(), grpo(kl=0.3), grpo(entropy=0.1), grpo(clip=0.5, clip_high=2.0)], ids=str
)
def test_loss_and_gradient_equal_the_float64_reference(algorithm: Algorithm) -> None:
    rows = mixed_rows()
    tally, gradient = gradient_of(rows, algorithm)
    loss, expected = reference_loss(rows, algorithm)
    assert tally.loss == pytest.approx(loss, abs=1e-5)
    assert_close(gradient, expected, 1e-4)


@pytest.mark.parametrize("micro_batch_tokens", [1, 50, 100, 300])
def test_bucketing_and_padding_change_nothing(micro_batch_tokens: int) -> None:
    rows = mixed_rows()
    whole, expected = gradient_of(rows, grpo(kl=0.1, entropy=0.1), micro_batch_tokens=10**9)
    tally, gradient = gradient_of(
        rows, grpo(kl=0.1, entropy=0.1), micro_batch_tokens=micro_batch_tokens
    )
    assert_close(gradient, expected, 1e-6)
    assert tally.loss == pytest.approx(whole.loss, abs=1e-6)
    assert tally.ratio_max == pytest.approx(whole.ratio_max, rel=1e-5)
    for name in ("ratio", "clipped", "kl", "entropy", "count"):
        assert getattr(tally, name) == pytest.approx(getattr(whole, name), rel=1e-6), name


def test_the_order_of_rows_changes_nothing() -> None:
    rows = mixed_rows()
    expected = gradient_of(rows, grpo())
    for order in (list(reversed(range(12))), [5, 0, 11, 7, 2, 3, 8, 1, 10, 4, 9, 6]):
        found = gradient_of([rows[at] for at in order], grpo(), micro_batch_tokens=100)
        assert found[0].loss == pytest.approx(expected[0].loss, abs=1e-6)
        assert_close(found[1], expected[1], 1e-6)


def test_tokens_after_the_last_action_change_nothing() -> None:
    rows = mixed_rows()
    longer = [
        replace(
            row,
            token_ids=[*row.token_ids, 3, 1, 4],
            action_mask=[*row.action_mask, False, False, False],
            logprobs=[*row.logprobs, 0.0, 0.0, 0.0],
        )
        for row in rows
    ]
    expected, found = gradient_of(rows, grpo()), gradient_of(longer, grpo())
    assert found[0].loss == expected[0].loss
    assert_close(found[1], expected[1], 0.0)


def test_minibatches_sum_to_the_batch_weighted_by_their_rows() -> None:
    rows = mixed_rows()
    whole, expected = gradient_of(rows, grpo())
    equal = [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    tally, gradient = gradient_of(rows, grpo(), minibatches=equal)
    assert tally.loss == pytest.approx(whole.loss, abs=1e-6)
    assert_close({name: tensor / 2 for name, tensor in gradient.items()}, expected, 1e-6)


def test_a_ratio_of_one_gives_the_plain_policy_gradient() -> None:
    rows = on_policy(mixed_rows(), initial_weights())
    tally, gradient = gradient_of(rows, grpo())
    model = reference_model(initial_weights())
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        advantage = torch.tensor(row.advantage, dtype=torch.float64)
        total = total - row.weight * (advantage * reference_logprobs(model, row)).sum()
    (total / tally.count).backward()  # type: ignore[no-untyped-call]
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_close(gradient, expected, 1e-4)
    assert tally.ratio / tally.count == pytest.approx(1.0, abs=1e-5)
    assert tally.ratio_max == pytest.approx(1.0, abs=1e-5)
    assert tally.clipped == 0
    assert tally.kl == pytest.approx(0.0, abs=1e-8)


def test_a_weight_of_zero_removes_a_trajectory() -> None:
    rows = mixed_rows()
    silent = [replace(row, weight=0.0) if at == 3 else row for at, row in enumerate(rows)]
    other = replace(silent[3], advantage=[100.0])
    expected = gradient_of(silent, grpo())
    found = gradient_of([*silent[:3], other, *silent[4:]], grpo())
    assert_close(found[1], expected[1], 0.0)
    assert gradient_of(rows, grpo())[0].loss != expected[0].loss
