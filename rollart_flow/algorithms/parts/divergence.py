"""The penalty for moving away from a reference policy: estimators of KL(pi_theta || pi_ref).

With d = log pi_theta - log pi_ref of a sampled token (Schulman, joschu.net/blog/kl-approx.html):

    k1 = d                    unbiased value, high variance
    k2 = d^2 / 2              biased value; its gradient is that of the divergence
    k3 = e^-d - 1 + d         unbiased value, low variance, never negative

Differentiated as it stands, k1 has a gradient of mean zero: the penalty would be silently inert. So
its value is k1, and its gradient is that of the divergence, sg[d] d log pi_theta, as of k2. The
gradient of k3 is that of the reverse direction, KL(pi_ref || pi_theta).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rollart_flow.algorithms.base import Tokens

if TYPE_CHECKING:
    import torch

KLEstimator = Literal["k1", "k2", "k3"]


def divergence(tokens: Tokens, estimator: KLEstimator) -> torch.Tensor:
    """Estimated divergence at each token [action tokens], differentiable.

    Raises:
        TrainerError: there are no reference logprobs.
    """
    import torch

    gap = tokens.logprobs - tokens.need("reference_logprobs")
    if estimator == "k2":
        return gap**2 / 2
    if estimator == "k3":
        return torch.expm1(-gap) + gap
    held = gap.detach()
    return held + held * (tokens.logprobs - tokens.logprobs.detach())
