"""PPO's clipped surrogate.

    rho  = pi_theta / mu, or pi_theta / pi_old         `ratio_to`
    L    = -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A)
    loss = min(L, -dual A)  for A < 0 where `dual` is set, else L

Sources: ROLL Flash (2510.11345) section 2.1, eq. 2 and 3; DAPO (2503.14476) for the higher upper
clip; 1912.09729 for the dual clip, which bounds how hard a token that has become likely is pushed
down.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.algorithms.base import TokenLoss, Tokens
from rollart_flow.algorithms.losses.ratio import RatioLoss
from rollart_flow.validation import check_number


@dataclass(frozen=True, slots=True)
class Clipped(RatioLoss):
    """Clipped surrogate of each action token."""

    clip: float = 0.2
    """Distance below 1 at which the gradient of the ratio is cut."""
    clip_high: float = 0.28
    """Distance above 1; a larger value than `clip` lets unlikely tokens grow (DAPO)."""
    dual: float | None = None
    """Ratio beyond which a token with a negative advantage has no gradient, above 1 (1.4 in ROLL, 3
    elsewhere); None for no bound."""

    def __post_init__(self) -> None:
        RatioLoss.__post_init__(self)
        check_number("clip", self.clip, low=0, high=1, open_low=True)
        check_number("clip_high", self.clip_high, low=0, open_low=True)
        if self.dual is not None:
            check_number("dual", self.dual, low=1, open_low=True)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens))
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * tokens.advantages, within * tokens.advantages
        clipped = bounded < surrogate
        objective = torch.minimum(surrogate, bounded)
        if self.dual is not None:
            least = self.dual * tokens.advantages
            clipped = clipped | ((tokens.advantages < 0) & (objective < least))
            objective = torch.where(
                tokens.advantages < 0, torch.maximum(objective, least), objective
            )
        return TokenLoss(-objective, ratio.detach(), clipped.detach())
