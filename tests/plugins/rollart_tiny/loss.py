"""A loss with its recipe: REINFORCE without a baseline, times a half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from rollart_flow.algorithms.advantages import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens
from rollart_flow.algorithms.recipe import Common, compose
from rollart_tiny import used


@dataclass(frozen=True, slots=True)
class Half(Loss):
    """Half of the policy gradient."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        used("loss")
        ratio = torch.ones_like(tokens.logprobs)
        clipped = torch.zeros_like(tokens.logprobs, dtype=torch.bool)
        return TokenLoss(-0.5 * tokens.advantages * tokens.logprobs, ratio, clipped)


def tiny(**common: Unpack[Common]) -> Algorithm:
    """Return the algorithm for `train`."""
    return compose("tiny", Half(), common, advantage=GroupNormalized())
