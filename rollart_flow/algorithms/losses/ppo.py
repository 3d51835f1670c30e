"""PPO's clipped surrogate against the behavior policy.

    rho  = pi_theta / mu                        mu: behavior logprobs as stored
    loss = -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A)

Sources: ROLL Flash (2510.11345) section 2.1, eq. 2 and 3; DAPO (2503.14476) for the higher upper
clip. The ratio is taken to the policy that drew the token, not to the policy at the start of the
update: one ratio corrects both for several updates and for staleness.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens
from rollart_flow.algorithms.checks import check_number


@dataclass(frozen=True, slots=True)
class Clipped(Loss):
    """See the module."""

    clip: float = 0.2
    """How far below 1 the ratio may go before its gradient is cut."""
    clip_high: float = 0.28
    """How far above 1; larger than `clip` lets unlikely tokens grow (DAPO)."""

    def __post_init__(self) -> None:
        check_number("clip", self.clip, low=0, high=1, open_low=True)
        check_number("clip_high", self.clip_high, low=0, open_low=True)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Clipped surrogate of each action token. See `Loss`."""
        import torch

        ratio = torch.exp(tokens.logprobs - tokens.behavior_logprobs)
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * tokens.advantages, within * tokens.advantages
        return TokenLoss(
            -torch.minimum(surrogate, bounded), ratio.detach(), (bounded < surrogate).detach()
        )
