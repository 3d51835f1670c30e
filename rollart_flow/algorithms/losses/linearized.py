"""A loss by its value and its slope at the weights that a step starts from."""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens

START_LOSS = "start_loss"
"""Column of `batches` with the value of the loss."""


@dataclass(frozen=True, slots=True)
class Linearized(Loss):
    """The tangent of a loss of whole batches, such as one of pairs.

        loss = V - A (log pi_theta - sg[log pi_theta])

    The estimator computes V (the column `start_loss`) and A (the advantage), the negative
    derivative of the loss by the log-likelihood of a token, at the weights that the step starts
    from. In the only update of a step, value and gradient are exactly those of the loss, however
    rows are cut into micro-batches, and over ranks.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({START_LOSS})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        held = tokens.logprobs.detach()
        loss = tokens.need(START_LOSS) - tokens.advantages * (tokens.logprobs - held)
        ratio = torch.exp(held - tokens.behavior_logprobs)
        return TokenLoss(loss, ratio, torch.zeros_like(ratio, dtype=torch.bool))
