"""The penalty towards a reference policy: values and gradients, exactly over all actions."""

from typing import Any, get_args

import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.algorithms.base import Tokens
from rollart_flow.algorithms.parts.divergence import KLEstimator, divergence
from rollart_flow.errors import SettingsError, TrainerError

ESTIMATORS = get_args(KLEstimator)


def policies() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy that is trained, and logprobs of a reference."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    return logits[0].requires_grad_(), torch.log_softmax(logits[1], 0)


def tokens_of(logits: torch.Tensor, reference: torch.Tensor) -> Tokens:
    """Every action once, drawn on policy."""
    logprobs = torch.log_softmax(logits, 0)
    return Tokens(logprobs, logprobs.detach(), torch.zeros(9, dtype=torch.float64), reference)


def expected(estimator: KLEstimator) -> tuple[float, torch.Tensor]:
    """(mean over the policy's actions, gradient of that mean as a loss of samples has it)."""
    logits, reference = policies()
    tokens = tokens_of(logits, reference)
    mean = (tokens.behavior_logprobs.exp() * divergence(tokens, estimator)).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    return float(mean.detach()), gradient


def exact(*, reverse: bool = False) -> tuple[float, torch.Tensor]:
    """KL(pi_theta || pi_ref), or the other way round, and its gradient."""
    logits, reference = policies()
    logprobs = torch.log_softmax(logits, 0)
    p, q = (reference, logprobs) if reverse else (logprobs, reference)
    value = (p.exp() * (p - q)).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return float(value.detach()), gradient


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: KLEstimator) -> None:
    assert expected(estimator)[0] == pytest.approx(exact()[0], rel=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_gradients_of_k1_and_k2_are_that_of_the_divergence(estimator: KLEstimator) -> None:
    torch.testing.assert_close(expected(estimator)[1], exact()[1], rtol=1e-11, atol=1e-13)


def test_the_gradient_of_k3_is_that_of_the_reverse_divergence() -> None:
    torch.testing.assert_close(expected("k3")[1], exact(reverse=True)[1], rtol=1e-11, atol=1e-13)


def test_values_are_those_of_the_formulas() -> None:
    logits, reference = policies()
    tokens = tokens_of(logits, reference)
    gap = (tokens.logprobs - reference).detach()
    by_formula: dict[KLEstimator, torch.Tensor] = {
        "k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() - 1 + gap,
    }  # fmt: skip
    for estimator, values in by_formula.items():
        torch.testing.assert_close(divergence(tokens, estimator).detach(), values)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_there_is_none_from_oneself(estimator: KLEstimator) -> None:
    logits, _ = policies()
    tokens = tokens_of(logits, torch.log_softmax(logits.detach(), 0))
    found = divergence(tokens, estimator)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert not found.any()
    assert float(gradient.abs().max()) < 1e-15


def test_estimators_differ_in_the_loss_of_an_algorithm() -> None:
    logits, reference = policies()
    losses = [
        grpo(kl=0.3, kl_estimator=estimator).token_loss(tokens_of(logits, reference)).loss
        for estimator in ESTIMATORS
    ]
    assert len({tuple(loss.tolist()) for loss in losses}) == 3


def test_a_reference_that_is_not_there_yet_is_no_penalty_and_the_first_must_be() -> None:
    logits, reference = policies()
    without = Tokens(*(getattr(tokens_of(logits, reference), name) for name in
                       ("logprobs", "behavior_logprobs", "advantages")))  # fmt: skip
    later = grpo(kl=0.3, reference=5)
    assert torch.equal(later.token_loss(without).loss, grpo().token_loss(without).loss)
    with pytest.raises(TrainerError, match="needs reference_logprobs"):
        grpo(kl=0.3).token_loss(without)


@pytest.mark.parametrize(
    "settings",
    [{"kl_estimator": "k2"}, {"reference": 3}, {"kl": 0.1, "kl_estimator": "k4"},
     {"kl": 0.1, "reference": -1}],
)  # fmt: skip
def test_a_setting_that_would_be_ignored_or_is_wrong_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"need kl above 0|expected"):
        grpo(**settings)
