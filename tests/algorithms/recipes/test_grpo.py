"""GRPO against a float64 reference, written from the formula alone with its own gradient."""

import math
import pickle
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.algorithms.base import Tokens
from rollart_flow.algorithms.losses import Clipped
from rollart_flow.errors import SettingsError, TrainerError
from tests.algorithms.batches import Row, T, table

ROOT = Path(__file__).parents[3]


def batch(
    rewards: Sequence[float | None],
    groups: Sequence[str],
    actions: Sequence[int] | None = None,
    domains: Sequence[str] | None = None,
) -> pa.Table:
    """Attempts whose `actions` action tokens, 2 by default, lie between two observed ones."""
    counts = actions or [2] * len(rewards)
    names = domains or ["one"] * len(rewards)
    rows = zip(rewards, groups, counts, names, strict=True)
    made = [Row(g, 0.0 if r is None else r, (T(1, n), T(1, 0)), domain=d) for r, g, n, d in rows]
    found = table(made)
    place = found.column_names.index("reward")
    return found.set_column(place, "reward", pa.array(rewards, pa.float64()))


def reference(
    settings: Algorithm, logprob: float, behavior: float, advantage: float, reference_logprob: float
) -> tuple[float, float]:
    """(loss, its derivative by logprob) of one token, case by case."""
    clip = settings.loss
    assert isinstance(clip, Clipped)
    ratio = math.exp(logprob - behavior)
    loss, slope = -ratio * advantage, -ratio * advantage
    if advantage > 0 and ratio > 1 + clip.clip_high:
        loss, slope = -(1 + clip.clip_high) * advantage, 0.0
    if advantage < 0 and ratio < 1 - clip.clip:
        loss, slope = -(1 - clip.clip) * advantage, 0.0
    gap = reference_logprob - logprob
    loss += settings.kl * (math.exp(gap) - gap - 1)
    slope += settings.kl * (1 - math.exp(gap))
    return loss, slope


def tokens(count: int, seed: int = 0) -> dict[str, Any]:
    """Random arguments of `token_loss`, float64, with ratios far on both sides of the clip."""
    generator = torch.Generator().manual_seed(seed)
    behavior = -3 * torch.rand(count, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return {
        "logprobs": (behavior + 0.5 * noise[:, 0]).requires_grad_(),
        "behavior_logprobs": behavior,
        "advantages": noise[:, 1],
        "reference_logprobs": behavior + 0.5 * noise[:, 2],
    }


@pytest.mark.parametrize(
    "settings", [grpo(), grpo(kl=0.1), grpo(clip=0.05, clip_high=0.9, kl=1.0)], ids=str
)
def test_loss_and_gradient_are_those_of_the_formula(settings: Algorithm) -> None:
    arguments = tokens(2000)
    found = settings.token_loss(Tokens(**arguments))
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    columns = [arguments[name].tolist() for name in arguments]
    expected = [reference(settings, *row) for row in zip(*columns, strict=True)]
    losses, slopes = torch.tensor(expected, dtype=torch.float64).T
    gradient = arguments["logprobs"].grad
    assert gradient is not None
    torch.testing.assert_close(found.loss.detach(), losses, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, slopes, rtol=1e-12, atol=1e-12)


def test_ratio_and_clipped_are_reported() -> None:
    arguments = tokens(2000)
    found = grpo().token_loss(Tokens(**arguments))
    ratio = torch.exp(arguments["logprobs"].detach() - arguments["behavior_logprobs"])
    advantages = arguments["advantages"]
    clipped = ((ratio > 1.28) & (advantages > 0)) | ((ratio < 0.8) & (advantages < 0))
    assert torch.equal(found.ratio, ratio)
    assert torch.equal(found.clipped, clipped)
    assert 0 < int(clipped.sum()) < len(ratio)
    assert not found.ratio.requires_grad


def test_on_policy_it_is_the_plain_policy_gradient() -> None:
    arguments = tokens(100)
    arguments["behavior_logprobs"] = arguments["logprobs"].detach().clone()
    found = grpo().token_loss(Tokens(**arguments))
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(found.ratio, torch.ones(100, dtype=torch.float64))
    gradient = arguments["logprobs"].grad
    assert gradient is not None
    assert torch.equal(gradient, -arguments["advantages"])
    assert not found.clipped.any()


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        ({"clip": 0.1}, True),
        ({"clip_high": 0.2}, True),
        ({"kl": 0.01}, True),
        ({}, False),
    ],
)
def test_every_parameter_of_the_token_loss_matters(
    change: Mapping[str, Any], changes: bool
) -> None:
    arguments = tokens(200)
    before = grpo().token_loss(Tokens(**arguments)).loss
    after = grpo(**dict(change)).token_loss(Tokens(**arguments)).loss
    assert torch.equal(before, after) != changes


def test_kl_without_a_reference_is_refused() -> None:
    arguments = tokens(3)
    del arguments["reference_logprobs"]
    assert grpo(kl=0.1).needs_reference
    with pytest.raises(TrainerError, match="reference"):
        grpo(kl=0.1).token_loss(Tokens(**arguments))
    assert grpo().token_loss(Tokens(**arguments)).loss.shape == (3,)


def test_advantages_are_normalized_within_each_group() -> None:
    rewards = {"a": [0.0, 1.0, 1.0, 3.0], "b": [-1.0, 2.0, 2.0, 2.5]}
    order = [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2), ("b", 3), ("a", 3)]
    found = grpo().advantages(batch([rewards[g][i] for g, i in order], [g for g, _ in order]))
    expected = [
        (rewards[g][i] - statistics.fmean(rewards[g])) / (statistics.pstdev(rewards[g]) + 1e-6)
        for g, i in order
    ]
    np.testing.assert_allclose(np.concatenate(found.values), expected, rtol=1e-6)
    assert [value.shape for value in found.values] == [(1,)] * 8
    assert all(value.dtype == np.float32 for value in found.values)
    assert found.zero_variance_groups == 0


def test_equal_rewards_give_exactly_zero_and_are_counted() -> None:
    rewards = [0.1] * 6 + [1.0, 0.0] + [7.7]
    assert np.mean(rewards[:6]) != 0.1  # so that subtracting the mean alone would not give zero
    found = grpo().advantages(batch(rewards, ["a"] * 6 + ["b"] * 2 + ["alone"]))
    values = np.concatenate(found.values)
    assert (values[:6] == 0).all()
    assert (np.abs(values[6:8]) > 0.9).all()
    assert values[8] == 0
    assert found.zero_variance_groups == 2


def test_eps_matters() -> None:
    rows = batch([0.0, 1.0], ["a", "a"])
    values = [grpo(eps=eps).advantages(rows).values[1][0] for eps in (1e-6, 0.5)]
    assert values[0] == pytest.approx(1.0, abs=1e-5)
    assert values[1] == pytest.approx(0.5)


def test_sequence_weights_make_the_token_mean_a_mean_over_sequences() -> None:
    actions, losses = [1, 4, 5], [3.0, 1.0, -2.0]
    rows = batch([0.0, 1.0, 2.0], ["a"] * 3, actions)
    weights = grpo(aggregation="sequence").weights(rows)
    total = sum(w * n * loss for w, n, loss in zip(weights, actions, losses, strict=True))
    assert total / sum(actions) == pytest.approx(statistics.fmean(losses))
    assert grpo(aggregation="token").weights(rows).tolist() == [1.0, 1.0, 1.0]


def test_domain_weights_make_the_token_mean_a_mean_over_domains() -> None:
    actions, losses = [1, 4, 5], [3.0, 1.0, -2.0]
    rows = batch([0.0, 1.0, 2.0], ["a"] * 3, actions, ["long", "short", "long"])
    weights = grpo(aggregation="domain").weights(rows)
    total = sum(w * n * loss for w, n, loss in zip(weights, actions, losses, strict=True))
    assert total / sum(actions) == pytest.approx(((3.0 - 10.0) / 6 + 1.0) / 2)


def test_chunked_and_sliced_columns_are_read_right() -> None:
    rows = batch([5.0, 0.0, 1.0, 3.0], ["x", "a", "a", "a"], [9, 1, 2, 3])
    for part in (rows.slice(1), pa.concat_tables([rows.slice(1, 1), rows.slice(2)])):
        assert grpo(aggregation="sequence").weights(part) == pytest.approx((2.0, 1.0, 2 / 3))
        assert grpo().advantages(part).zero_variance_groups == 0


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_a_trajectory_without_a_finite_reward_is_refused(reward: float | None) -> None:
    with pytest.raises(TrainerError, match="trajectory 1 "):
        grpo().advantages(batch([1.0, reward], ["a", "a"]))


def test_a_trajectory_without_an_action_is_refused() -> None:
    with pytest.raises(TrainerError, match="action token"):
        grpo().weights(batch([1.0, 2.0], ["a", "a"], [1, 0]))
    with pytest.raises(TrainerError, match="empty"):
        grpo().weights(batch([], []))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip", 0.0),
        ("clip", 1.5),
        ("clip", "0.2"),
        ("clip", True),
        ("clip_high", -0.1),
        ("clip_high", float("inf")),
        ("kl", -1.0),
        ("kl", float("nan")),
        ("entropy", -0.1),
        ("aggregation", "mean"),
        ("eps", 0.0),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name}=.*expected") as caught:
        grpo(**{name: value})
    assert "\n" not in str(caught.value)


def test_settings_are_values() -> None:
    settings = grpo(kl=0.1, entropy=0.02)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert replace(settings, kl=0.0, entropy=0.0) == grpo()
    assert hash(settings) != hash(grpo())


def test_settings_load_no_torch() -> None:
    code = (
        "import sys; from rollart_flow.algorithms import grpo; from rollart_flow.trainers import "
        "adamw; from rollart_flow.trainers.settings import RankSettings; "
        "from rollart_flow.weights import open_weights; grpo(), adamw(), RankSettings(); "
        "assert open_weights('local', '/nowhere').versions() == (); "
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
