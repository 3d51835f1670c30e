"""Decoupled PPO (AReaL): a clip around a proximal policy, and a weight for the behavior policy.

    r    = pi_theta / pi_prox,  w = sg[pi_prox / mu]
    loss = -w min(r A, clip(r, 1 - clip, 1 + clip_high) A),  0 where w > cap

The proximal policy is one of two:

    recomputed    pi_old, the policy that the step starts from
    interpolated  log pi_prox = log mu + a (sg[log pi_theta] - log mu)
                  a = (v_prox - v_mu) / (v_theta - v_mu), v_prox = v_theta - 1
                  a = 0 where v_theta = v_mu

v_theta is the version that the step starts from and v_mu the token's own, so that with a lag of
n = v_theta - v_mu versions a = (n - 1) / n, and no further forward pass is needed.

Sources: 2110.00641; AReaL (2505.24298) section 5.2, whose code drops tokens beyond the cap (5) and
has the interpolation (docs/algorithms/prox_approx.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import ClipBelow, Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import torch

Proximal = Literal["recomputed", "interpolated"]


@dataclass(frozen=True, slots=True)
class Decoupled(CheckedSettings, Loss):
    """Weighted clipped surrogate; ratio and weight together correct for the behavior policy."""

    clip: ClipBelow = 0.2
    """Distance below 1 at which the gradient of the ratio to the proximal policy is cut."""
    clip_high: Positive = 0.2
    """Distance above 1."""
    cap: Positive = 5.0
    """Weight beyond which a token is dropped."""
    proximal: Proximal = "recomputed"
    """`recomputed` costs one more forward pass where a batch is cut into minibatches."""

    @property
    def anchor(self) -> RatioTo:
        return "behavior"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"old_logprobs" if self.proximal == "recomputed" else "lags"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        proximal = self._proximal(tokens)
        weight = torch.exp(proximal - tokens.behavior_logprobs)
        ratio = torch.exp(tokens.logprobs - proximal)
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * tokens.advantages, within * tokens.advantages
        dropped = weight > self.cap
        loss = -torch.minimum(surrogate, bounded) * weight.masked_fill(dropped, 0.0)
        return TokenLoss(loss, ratio.detach(), dropped | (bounded < surrogate).detach())

    def _proximal(self, tokens: Tokens) -> torch.Tensor:
        """Return log pi_prox of each token, without gradient."""
        if self.proximal == "recomputed":
            return tokens.need("old_logprobs")
        lags = tokens.need("lags").to(tokens.logprobs.dtype)
        part = (lags - 1.0).clamp(min=0.0) / lags.clamp(min=1.0)
        behavior = tokens.behavior_logprobs
        return behavior + part * (tokens.logprobs.detach() - behavior)


def decoupled_ppo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.2,
    cap: float = 5.0,
    proximal: Proximal = "recomputed",
    **common: Unpack[Common],
) -> Algorithm:
    """Decoupled PPO for `train`, with the settings of its loss and of `Common`."""
    loss = Decoupled(clip, clip_high, cap, proximal)
    return compose("decoupled_ppo", loss, common, advantage=GroupNormalized())
