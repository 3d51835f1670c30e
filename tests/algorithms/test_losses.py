"""Every loss against a float64 reference written from its formula alone, its gradient by hand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from statistics import fmean
from typing import Any, cast

import pytest
import torch

from rollart_flow.algorithms.base import COMPUTED, Loss
from rollart_flow.algorithms.losses import Clipped, Linearized, Truncated, Vanilla
from rollart_flow.algorithms.recipes.cispo import CISPO
from rollart_flow.algorithms.recipes.decoupled_ppo import Decoupled
from rollart_flow.algorithms.recipes.distill import Distillation
from rollart_flow.algorithms.recipes.double_sided import DoubleSided
from rollart_flow.algorithms.recipes.gspo import GSPO
from rollart_flow.algorithms.recipes.ipa import IPA
from rollart_flow.algorithms.recipes.kimi import Kimi
from rollart_flow.algorithms.recipes.topr import TOPR
from rollart_flow.algorithms.registry import RECIPES
from rollart_flow.errors import SettingsError, TrainerError
from tests.algorithms.columns import (
    Token,
    assert_is,
    loss_and_slope,
    make_tokens,
    one_policy,
    tensors,
)

Pair = tuple[float, float]
"""(loss, its derivative by the token's logprob)."""


def rho(loss: Any, t: Token) -> float:
    return t.ratio if loss.ratio_to == "behavior" else t.moved


def policy_gradient(weight: float, t: Token) -> Pair:
    """-weight A log pi with a weight that is held."""
    return -weight * t.advantages * t.logprobs, -weight * t.advantages


def surrogate(ratio: float, advantage: float, low: float, high: float) -> Pair:
    """PPO's clip, case by case: the derivative is by the logprob within the ratio."""
    if advantage > 0 and ratio > high:
        return -high * advantage, 0.0
    if advantage < 0 and ratio < low:
        return -low * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def clipped(loss: Clipped, t: Token) -> Pair:
    ratio = rho(loss, t)
    if loss.dual is not None and t.advantages < 0 and ratio > loss.dual:
        return -loss.dual * t.advantages, 0.0
    return surrogate(ratio, t.advantages, 1 - loss.clip, 1 + loss.clip_high)


def decoupled(loss: Decoupled, t: Token) -> Pair:
    proximal = t.old_logprobs
    if loss.proximal == "interpolated":
        part = 0.0 if t.lags == 0 else (t.lags - 1) / t.lags
        proximal = t.behavior_logprobs + part * (t.logprobs - t.behavior_logprobs)
    weight = math.exp(proximal - t.behavior_logprobs)
    if weight > loss.cap:
        return 0.0, 0.0
    ratio = math.exp(t.logprobs - proximal)
    value, slope = surrogate(ratio, t.advantages, 1 - loss.clip, 1 + loss.clip_high)
    return weight * value, weight * slope


def cispo(loss: CISPO, t: Token) -> Pair:
    ratio = rho(loss, t)
    above, below = ratio > 1 + loss.clip_high, ratio < 1 - loss.clip
    if loss.mask and ((t.advantages > 0 and above) or (t.advantages < 0 and below)):
        return 0.0, 0.0
    return policy_gradient(min(max(ratio, 1 - loss.clip), 1 + loss.clip_high), t)


def topr(loss: TOPR, t: Token) -> Pair:
    weight = loss.positive if t.reward > 0 else loss.negative * min(rho(loss, t), 1.0)
    return policy_gradient(weight, t)


def double_sided(loss: DoubleSided, t: Token, tokens: Sequence[Token]) -> Pair:
    lag = max(other.lags for other in tokens if other.rows == t.rows)
    if loss.max_lag is not None and lag > loss.max_lag:
        return 0.0, 0.0
    inside = 1 - loss.clip < t.ratio < 1 + loss.clip_high
    return policy_gradient(t.ratio if inside else 0.0, t)


def kimi(loss: Kimi, t: Token) -> Pair:
    gap = t.logprobs - t.old_logprobs
    return (
        -t.advantages * t.logprobs + loss.tau / 2 * gap**2,
        -t.advantages + loss.tau * gap,
    )


def gspo(loss: GSPO, t: Token, tokens: Sequence[Token]) -> Pair:
    own = [other for other in tokens if other.rows == t.rows]
    ratio = math.exp(fmean(math.log(rho(loss, other)) for other in own))
    value, slope = surrogate(ratio, t.advantages, 1 - loss.clip, 1 + loss.clip_high)
    return value, slope  # each of n losses has 1/n of its slope at each of n tokens


def ipa(loss: IPA, t: Token, tokens: Sequence[Token]) -> Pair:
    own = [other for other in tokens if other.chunks == t.chunks]
    moved = math.prod(other.moved for other in own) ** (1 / len(own))
    drift = math.prod(other.mismatch for other in own) ** (1 / len(own))
    if drift > loss.high:
        return 0.0, 0.0
    return policy_gradient(1.0 if t.advantages > 0 else min(moved, 1.0), t)


def distillation(loss: Distillation, t: Token) -> Pair:
    """KL(pi || pi_T) by tokens of pi, whose slope is d log pi; KL(pi_T || pi) by those of pi_T."""
    reverse = loss.direction == "reverse"
    drawn = t.logprobs if reverse else t.reference_logprobs
    weight = min(math.exp(drawn - t.behavior_logprobs), loss.cap) * t.advantages
    gap = t.logprobs - t.reference_logprobs
    return (weight * gap, weight * gap) if reverse else (-weight * gap, -weight)


BY_TOKEN: dict[type[Loss], Callable[[Any, Token], Pair]] = {
    Vanilla: lambda loss, t: policy_gradient(1.0, t),
    Clipped: clipped,
    Decoupled: decoupled,
    Truncated: lambda loss, t: policy_gradient(min(rho(loss, t), loss.cap), t),
    CISPO: cispo,
    TOPR: topr,
    Kimi: kimi,
    Distillation: distillation,
}
BY_TRAJECTORY: dict[type[Loss], Callable[[Any, Token, Sequence[Token]], Pair]] = {
    DoubleSided: double_sided,
    GSPO: gspo,
    IPA: ipa,
}


def reference(loss: Loss, tokens: Sequence[Token]) -> list[Pair]:
    if type(loss) in BY_TOKEN:
        return [BY_TOKEN[type(loss)](loss, t) for t in tokens]
    return [BY_TRAJECTORY[type(loss)](loss, t, tokens) for t in tokens]


OTHER: dict[type[Loss], dict[str, Any]] = {
    Vanilla: {},
    Clipped: {"clip": 0.05, "clip_high": 0.9, "dual": 1.4, "ratio_to": "old"},
    Decoupled: {"clip": 0.05, "clip_high": 0.9, "cap": 1.2, "proximal": "interpolated"},
    Truncated: {"cap": 1.3, "ratio_to": "old"},
    CISPO: {"clip": 0.3, "clip_high": 0.3, "mask": True, "ratio_to": "old"},
    TOPR: {"positive": 0.5, "negative": 2.0, "ratio_to": "old"},
    GSPO: {"clip": 0.2, "clip_high": 0.3, "ratio_to": "old"},
    IPA: {"high": 1.1},
    DoubleSided: {"clip": 0.4, "clip_high": 0.1, "max_lag": 1},
    Kimi: {"tau": 1.0},
    Distillation: {"direction": "forward", "cap": 1.1},
}
"""Another value of every parameter of every loss."""

VARIANTS = [make() for make in OTHER] + [
    make(**{name: value}) for make, changes in OTHER.items() for name, value in changes.items()
]
EVERY = [make(**changes) for make, changes in OTHER.items()]


REQUIRED: dict[str, dict[str, Any]] = {
    "dr_grpo": {"constant_tokens": 64},
    "distill": {"teacher": "folder"},
}
"""Arguments that a recipe must be given."""


def test_every_loss_has_a_reference_here() -> None:
    """Those of preferences, whose tangents one loss computes, have theirs in `test_preferences`."""
    made = {type(recipe(**REQUIRED.get(name, {})).loss) for name, recipe in RECIPES.variants()}
    assert made - {Linearized} == set(OTHER) == set(BY_TOKEN) | set(BY_TRAJECTORY)


@pytest.mark.parametrize("loss", VARIANTS + EVERY, ids=str)
def test_loss_and_gradient_are_those_of_the_formula(loss: Loss) -> None:
    tokens = make_tokens()
    assert_is(loss, tokens, reference(loss, tokens))


@pytest.mark.parametrize("make", list(OTHER))
def test_every_parameter_changes_the_loss(make: type[Any]) -> None:
    assert OTHER[make].keys() == {field.name for field in fields(make)}, "a parameter is missing"
    tokens = make_tokens()
    before = loss_and_slope(make(), tokens)[1]
    for name, value in OTHER[make].items():
        after = loss_and_slope(make(**{name: value}), tokens)[1]
        assert not torch.equal(before, after), name


@pytest.mark.parametrize(
    "loss", [loss for loss in VARIANTS if not isinstance(loss, Distillation)], ids=str
)
def test_on_policy_it_is_the_plain_policy_gradient(loss: Loss) -> None:
    tokens = one_policy(make_tokens())
    slopes = loss_and_slope(loss, tokens)[1]
    expected = [-t.advantages for t in tokens]
    if isinstance(loss, TOPR):  # its weights are on top
        weights = [loss.positive if t.reward > 0 else loss.negative for t in tokens]
        expected = [w * slope for w, slope in zip(weights, expected, strict=True)]
    if isinstance(loss, DoubleSided) and loss.max_lag is not None:
        expected = [pair[1] for pair in reference(loss, tokens)]
    torch.testing.assert_close(slopes, torch.tensor(expected, dtype=torch.float64))
    assert not loss(tensors(tokens)).clipped.any() or isinstance(loss, DoubleSided)


@pytest.mark.parametrize("loss", VARIANTS, ids=str)
def test_how_trajectories_share_a_micro_batch_changes_nothing(loss: Loss) -> None:
    tokens = make_tokens()
    together = torch.stack(loss_and_slope(loss, tokens))
    cut = next(at for at, t in enumerate(tokens) if t.rows == 20)
    parts = [torch.stack(loss_and_slope(loss, part)) for part in (tokens[:cut], tokens[cut:])]
    torch.testing.assert_close(torch.cat(parts, 1), together, rtol=1e-13, atol=1e-13)
    swapped = torch.stack(loss_and_slope(loss, tokens[cut:] + tokens[:cut]))
    torch.testing.assert_close(
        torch.cat([swapped[:, -cut:], swapped[:, :-cut]], 1), together, rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("loss", EVERY, ids=str)
def test_what_it_needs_is_what_it_reads(loss: Loss) -> None:
    whole = tensors(make_tokens())
    unread: Any = dict.fromkeys(COMPUTED - loss.needs)
    expected = loss(whole).loss
    assert torch.equal(loss(replace(whole, **unread)).loss, expected)
    for name in loss.needs:
        with pytest.raises(TrainerError, match=f"needs {name}, which this batch does not have"):
            loss(replace(whole, **cast(Any, {name: None} if name in COMPUTED else {"columns": {}})))


@pytest.mark.parametrize("loss", VARIANTS, ids=str)
def test_what_is_reported_has_no_gradient(loss: Loss) -> None:
    found = loss(tensors(make_tokens()))
    assert not found.ratio.requires_grad
    assert found.clipped.dtype == torch.bool
    assert found.loss.shape == found.ratio.shape == found.clipped.shape
    if not isinstance(loss, Vanilla | Kimi):
        assert 0 < int(found.clipped.sum()) <= len(found.clipped)


def test_each_token_of_a_mixed_trajectory_has_its_own_version() -> None:
    """Interpolated: a token that is 1 behind keeps mu, one that is 3 behind goes 2/3 of the way."""
    first = replace(make_tokens(1)[0], behavior_logprobs=-2.0, logprobs=-1.4, advantages=1.0)
    loss = Decoupled(proximal="interpolated", clip_high=9.0)
    ratios = loss(tensors([replace(first, lags=lag) for lag in (0, 1, 3)])).ratio.tolist()
    assert ratios == pytest.approx([math.exp(0.6), math.exp(0.6), math.exp(0.2)])


def test_no_token_at_all_is_no_error() -> None:
    for loss in VARIANTS:
        assert loss(tensors([])).loss.shape == (0,)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (Clipped, "ratio_to", "reference"), (Clipped, "dual", 1.0), (Decoupled, "cap", 0.0),
        (Decoupled, "proximal", "guessed"), (Truncated, "cap", -1.0), (CISPO, "mask", 1),
        (CISPO, "clip", 1.5), (TOPR, "positive", -0.1), (TOPR, "negative", "1"),
        (GSPO, "clip", 0.0), (IPA, "high", 0.0), (DoubleSided, "max_lag", 1.5),
        (DoubleSided, "clip_high", 0.0), (Kimi, "tau", -1.0),
    ],
)  # fmt: skip
def test_a_bad_value_is_one_line_that_names_it(make: type[Loss], name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{name}=.*expected") as caught:
        make(**{name: value})
    assert "\n" not in str(caught.value)
