"""Kimi's loss: the policy gradient with a penalty on the squared log-ratio to the step's start.

    loss = -A log pi_theta + (tau / 2) (log pi_theta - log pi_old)^2,  A = r - mean of the group

pi_old is the policy that the step starts from, so that the second term has an effect from the
second update of a step on. There is no importance ratio; a correction may still weight the tokens.

Source: Kimi k1.5 (2501.12599) section 2.3.2, Kimi K2 (2507.20534) section 3.2.2.
"""

from dataclasses import dataclass
from typing import Annotated, Unpack

from rollart_flow.algorithms.advantages.groups import GroupCentered
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, TokenLoss, Tokens
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.fields import Within
from rollart_flow.validation import CheckedSettings


@dataclass(frozen=True, slots=True)
class Kimi(CheckedSettings, Loss):
    """Log-likelihood times the advantage, and the penalty."""

    tau: Annotated[float, Within(0)] = 0.1
    """Factor of the squared log-ratio."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"old_logprobs"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        moved = tokens.logprobs - tokens.need("old_logprobs")
        ratio = torch.exp(moved).detach()
        loss = -tokens.advantages * tokens.logprobs + self.tau / 2 * moved**2
        return TokenLoss(loss, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def kimi(*, tau: float = 0.1, **common: Unpack[Common]) -> Algorithm:
    """Kimi's loss for `train`, with the settings of its loss and the keywords of `Common`."""
    return compose("kimi", Kimi(tau), common, advantage=GroupCentered())
