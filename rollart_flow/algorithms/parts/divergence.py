"""Penalty for divergence from a reference policy: estimators of KL(pi_theta || pi_ref).

With d = log pi_theta - log pi_ref of a sampled token (Schulman, joschu.net/blog/kl-approx.html):

    k1 = d                    unbiased value, high variance
    k2 = d^2 / 2              biased value; its gradient is that of the divergence
    k3 = e^-d - 1 + d         unbiased value, low variance, never negative

The derivative of k1 itself has mean zero, so that the penalty would have no effect. The estimator
k1 therefore has the value of k1 and the gradient of the divergence, sg[d] d log pi_theta, as k2.
The gradient of k3 is that of the reverse direction, KL(pi_ref || pi_theta).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rollart_flow.algorithms.base import Tokens

if TYPE_CHECKING:
    import torch

KLEstimator = Literal["k1", "k2", "k3"]


def divergence(tokens: Tokens, estimator: KLEstimator) -> torch.Tensor:
    """Estimate the divergence at each token [action tokens], differentiable."""
    import torch

    gap = tokens.logprobs - tokens.need("reference_logprobs")
    if estimator == "k2":
        return gap**2 / 2
    if estimator == "k3":
        return torch.expm1(-gap) + gap
    held = gap.detach()
    return held + held * (tokens.logprobs - tokens.logprobs.detach())
