"""The plain policy gradient: loss = -A log pi_theta (Williams 1992, REINFORCE).

With advantages of 1 it is the negative log-likelihood of imitation.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens


@dataclass(frozen=True, slots=True)
class Vanilla(Loss):
    """Log-likelihood times the advantage; there is no ratio, so no correction for staleness."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(tokens.logprobs.detach() - tokens.behavior_logprobs)
        nothing = torch.zeros_like(ratio, dtype=torch.bool)
        return TokenLoss(-tokens.advantages * tokens.logprobs, ratio, nothing)
