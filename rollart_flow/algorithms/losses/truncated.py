"""REINFORCE with a truncated importance ratio (ROLL's "TIS").

    loss = -sg[clip(rho, 0, cap)] A log pi_theta

Every token has a gradient: the cap replaces a larger ratio. With a cap of 1, a token that has
become likelier has no larger weight.

Sources: ROLL (2506.06122) and its code's loss of that name; IMPALA (1802.01561) for the truncation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.algorithms.base import TokenLoss, Tokens
from rollart_flow.algorithms.losses.ratio import RatioLoss
from rollart_flow.validation import check_number


@dataclass(frozen=True, slots=True)
class Truncated(RatioLoss):
    """Weighted log-likelihood of each action token, with a truncated weight."""

    cap: float = 1.0
    """Largest ratio; a larger one is replaced by it."""

    def __post_init__(self) -> None:
        RatioLoss.__post_init__(self)
        check_number("cap", self.cap, low=0, open_low=True)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens)).detach()
        loss = -ratio.clamp(max=self.cap) * tokens.advantages * tokens.logprobs
        return TokenLoss(loss, ratio, ratio > self.cap)
