"""Corrections: formulas, that nothing is corrected twice, and that a biased engine is undone."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from statistics import fmean
from typing import Any, cast

import pytest
import torch

from rollart_flow.algorithms import Algorithm, corrections, grpo
from rollart_flow.algorithms.advantages import Constant
from rollart_flow.algorithms.base import Correction, Loss, Tokens
from rollart_flow.algorithms.corrections import OPSM, TIS, Exact, IcePop, icepop, opsm, tis
from rollart_flow.algorithms.losses import Clipped, Truncated, Vanilla
from rollart_flow.algorithms.recipes.cispo import CISPO
from rollart_flow.algorithms.recipes.decoupled_ppo import Decoupled
from rollart_flow.algorithms.recipes.double_sided import DoubleSided
from rollart_flow.algorithms.recipes.gspo import GSPO
from rollart_flow.algorithms.recipes.ipa import IPA
from rollart_flow.algorithms.recipes.kimi import Kimi
from rollart_flow.algorithms.recipes.topr import TOPR
from rollart_flow.errors import SettingsError
from tests.algorithms.columns import (
    Token,
    assert_is,
    loss_and_slope,
    make_tokens,
    one_policy,
    tensors,
)

WITH_A_RATIO: list[type[Any]] = [CISPO, GSPO, TOPR, Clipped, Truncated]
ANY: list[Correction] = [
    Exact(),
    tis(1.2),
    icepop(0.8, 1.5),
    opsm(0.01),
    opsm(0.01, weight=tis(1.2)),
]


def composed(loss: Loss, correction: Correction | None = None) -> Algorithm:
    return Algorithm("composed", loss, Constant(), correction=correction)


def by_hand(correction: Correction, t: Token, tokens: Sequence[Token]) -> float:
    """The factor of one token, case by case."""
    weight = t.mismatch
    if isinstance(correction, TIS):
        return min(weight, correction.cap)
    if isinstance(correction, IcePop):
        return weight if correction.low <= weight <= correction.high else 0.0
    if isinstance(correction, OPSM):
        own = [other for other in tokens if other.rows == t.rows]
        behind = fmean(other.old_logprobs - other.logprobs for other in own)
        kept = not (t.advantages < 0 and behind > correction.delta)
        return by_hand(correction.weight, t, tokens) if kept else 0.0
    return weight


@pytest.mark.parametrize("correction", ANY, ids=str)
def test_a_correction_is_a_factor_on_the_loss_without_a_gradient(correction: Correction) -> None:
    tokens = make_tokens()
    factors = [by_hand(correction, t, tokens) for t in tokens]
    assert len({round(factor, 9) for factor in factors}) > 20
    pairs = [(-t.advantages * t.logprobs, -t.advantages) for t in tokens]
    expected = [(f * value, f * slope) for f, (value, slope) in zip(factors, pairs, strict=True)]
    assert_is(composed(Vanilla(), correction).token_loss, tokens, expected)


@pytest.mark.parametrize("make", WITH_A_RATIO)
@pytest.mark.parametrize("correction", ANY, ids=str)
def test_with_a_correction_the_ratio_is_to_pi_old(make: type[Loss], correction: Correction) -> None:
    tokens = make_tokens()
    loss = make(ratio_to="old")  # type: ignore[call-arg]
    values, slopes = loss_and_slope(loss, tokens)
    factors = [by_hand(correction, t, tokens) for t in tokens]
    expected = []
    for at, t in enumerate(tokens):
        slope = factors[at] * float(slopes[at])
        if make is GSPO:  # each token's logprob is in the losses of its whole trajectory
            own = [other for other, of in enumerate(tokens) if of.rows == t.rows]
            slope = fmean(factors[other] * float(slopes[other]) for other in own)
        expected.append((factors[at] * float(values[at]), slope))
    assert_is(composed(loss, correction).token_loss, tokens, expected)


@pytest.mark.parametrize("wide", [Clipped(1.0, 1e9), GSPO(1.0, 1e9), Truncated(cap=1e9)], ids=str)
def test_the_pair_corrects_exactly_once(wide: Any) -> None:
    """Without a clip, pi_theta / pi_old x pi_old / mu is pi_theta / mu. For GSPO, in one token."""
    tokens = make_tokens()
    if isinstance(wide, GSPO):
        tokens = [replace(t, rows=at) for at, t in enumerate(tokens)]
    once = loss_and_slope(composed(wide).token_loss, tokens)
    pair = composed(replace(wide, ratio_to="old"))
    assert pair.factor == Exact()
    for found, expected in zip(loss_and_slope(pair.token_loss, tokens), once, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    capped = replace(pair, correction=tis(1e9))
    torch.testing.assert_close(loss_and_slope(capped.token_loss, tokens)[1], once[1])


@pytest.mark.parametrize(
    "loss",
    [*(make() for make in WITH_A_RATIO), Decoupled(), IPA(), DoubleSided()],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("correction", [tis(), icepop(), opsm()], ids=str)
def test_what_would_correct_twice_is_refused(loss: Loss, correction: Correction) -> None:
    with pytest.raises(SettingsError, match="would correct twice") as caught:
        composed(loss, correction)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loss", [Vanilla(), Kimi(), Clipped(ratio_to="old")], ids=str)
@pytest.mark.parametrize("correction", ANY, ids=str)
def test_with_one_policy_every_correction_is_neutral(loss: Loss, correction: Correction) -> None:
    tokens = one_policy(make_tokens())
    plain = loss_and_slope(loss, tokens)
    found = loss_and_slope(composed(loss, correction).token_loss, tokens)
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1], plain[1])


def test_the_first_update_is_corrected_although_its_ratio_is_1() -> None:
    """With pi_old = pi_theta the clip is inert; what is left is the weight."""
    tokens = [replace(t, old_logprobs=t.logprobs) for t in make_tokens()]
    slopes = loss_and_slope(composed(Clipped(ratio_to="old"), tis(1.2)).token_loss, tokens)[1]
    expected = [-t.advantages * min(t.mismatch, 1.2) for t in tokens]
    torch.testing.assert_close(slopes, torch.tensor(expected, dtype=torch.float64))


OTHER: dict[type[Correction], dict[str, Any]] = {
    Exact: {},
    TIS: {"cap": 1.1},
    IcePop: {"low": 0.9, "high": 1.1},
    OPSM: {"delta": 0.3, "weight": TIS(1.1)},
}


@pytest.mark.parametrize("make", list(OTHER))
def test_every_parameter_of_every_correction_matters(make: type[Any]) -> None:
    exported = {getattr(corrections, name) for name in corrections.__all__}
    assert {kind for kind in exported if isinstance(kind, type)} == set(OTHER)
    assert OTHER[make].keys() == {field.name for field in fields(make)}
    arguments = tensors(make_tokens())
    for name, value in OTHER[make].items():
        assert not torch.equal(make()(arguments), make(**{name: value})(arguments)), name


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tis(cap=0), "cap=0: expected"),
        (lambda: icepop(low=1.5), "low=1.5: expected"),
        (lambda: icepop(high=0.5), "high=0.5: expected"),
        (lambda: opsm(-1.0), "delta=-1.0: expected"),
        (lambda: OPSM(weight=cast(Any, "tis")), "weight='tis': expected a correction"),
        (lambda: opsm(weight=opsm()), "weight=OPSM.*: expected a correction"),
    ],
)
def test_a_bad_value_is_one_line(build: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_tis_shrinks_the_bias_of_a_biased_engine() -> None:
    """Exactly, over all actions: the engine draws from mu, and the trainer holds pi_theta."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(12, generator=generator, dtype=torch.float64).requires_grad_()
    engine = torch.log_softmax(logits.detach() * 1.5, 0)  # as if at a temperature of 2/3
    advantages = torch.randn(12, generator=generator, dtype=torch.float64)

    def gradient(drawn_from: torch.Tensor, algorithm: Algorithm) -> torch.Tensor:
        """Expected gradient by the logits over actions that are drawn from a policy."""
        logprobs = torch.log_softmax(logits, 0)
        found = algorithm.token_loss(
            Tokens(logprobs, drawn_from, advantages, old_logprobs=logprobs.detach())
        )
        (direction,) = torch.autograd.grad((drawn_from.exp() * found.loss).sum(), logits)
        return direction

    def bias(correction: Correction | None, loss: Loss) -> float:
        return float((gradient(engine, composed(loss, correction)) - true).norm())

    true = gradient(torch.log_softmax(logits.detach(), 0), composed(Vanilla()))
    uncorrected = bias(None, Vanilla())
    assert bias(tis(cap=2.0), Vanilla()) < 0.5 * uncorrected
    assert bias(Exact(), Vanilla()) < 1e-12
    assert bias(tis(cap=2.0), Clipped(ratio_to="old")) < 0.5 * uncorrected
    assert bias(tis(cap=5.0), Vanilla()) < bias(tis(cap=2.0), Vanilla()) < bias(tis(1.2), Vanilla())


def test_grpo_takes_a_correction_in_one_word() -> None:
    algorithm = grpo(clip=0.2, correction=tis(cap=2.0))
    assert algorithm.loss == Clipped(0.2, ratio_to="old")
    assert algorithm.factor == TIS(2.0)
    assert algorithm.needs == {"old_logprobs"}
    with pytest.raises(SettingsError, match="would correct twice"):
        grpo(correction=tis(), ratio_to="behavior")
    assert grpo(ratio_to="old").factor == Exact()
