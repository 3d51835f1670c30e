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
from typing import TYPE_CHECKING, Literal, Unpack, get_args

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.validation import check_choice, check_number

if TYPE_CHECKING:
    import torch

Proximal = Literal["recomputed", "interpolated"]


@dataclass(frozen=True, slots=True)
class Decoupled(Loss):
    """Weighted clipped surrogate; ratio and weight together correct for the behavior policy."""

    clip: float = 0.2
    """Distance below 1 at which the gradient of the ratio to the proximal policy is cut."""
    clip_high: float = 0.2
    """Distance above 1."""
    cap: float = 5.0
    """Weight beyond which a token is dropped."""
    proximal: Proximal = "recomputed"

    def __post_init__(self) -> None:
        check_number("clip", self.clip, low=0, high=1, open_low=True)
        check_number("clip_high", self.clip_high, low=0, open_low=True)
        check_number("cap", self.cap, low=0, open_low=True)
        check_choice("proximal", self.proximal, get_args(Proximal))

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
    """Decoupled PPO for `train`.

    Args:
        clip: distance below 1 at which the gradient of the ratio is cut.
        clip_high: distance above 1.
        cap: weight beyond which a token is dropped.
        proximal: `recomputed` (pi_old, one more forward pass where a batch is cut into minibatches)
            or `interpolated` between the behavior policy and the trained one.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = Decoupled(clip, clip_high, cap, proximal)
    return compose("decoupled_ppo", loss, common, advantage=GroupNormalized())
