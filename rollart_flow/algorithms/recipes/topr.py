"""Tapered off-policy REINFORCE (TOPR), plain and weighted.

    R > 0:   loss = -positive A log pi_theta
    R <= 0:  loss = -negative sg[clip(rho, 0, 1)] A log pi_theta

R is the trajectory's final reward. The loss imitates a success of any policy, and lowers the
probability of a failure only while that is still likely. Weights other than 1 give ROLL's weighted
TOPR.

Source: 2503.14286, eq. 6; ROLL for the weights.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import TokenLoss, Tokens
from rollart_flow.algorithms.losses.surrogates import RatioLoss
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to
from rollart_flow.fields import Within


@dataclass(frozen=True, slots=True)
class TOPR(RatioLoss):
    """Weighted log-likelihood of each action token."""

    reads: ClassVar[frozenset[str]] = frozenset({"reward"})

    positive: Annotated[float, Within(0)] = 1.0
    """Weight of trajectories whose final reward is above 0."""
    negative: Annotated[float, Within(0)] = 1.0
    """Weight of all others."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens)).detach()
        good = tokens.need("reward") > 0
        weight = torch.where(good, self.positive, self.negative * ratio.clamp(max=1.0))
        loss = -weight * tokens.advantages * tokens.logprobs
        return TokenLoss(loss, ratio, ~good & (ratio > 1.0))


def topr(*, positive: float = 1.0, negative: float = 1.0, **common: Unpack[WithRatio]) -> Algorithm:
    """TOPR for `train`, with the settings of its loss and the keywords of `WithRatio`."""
    loss = TOPR(positive, negative, ratio_to=ratio_to(common))
    return compose("topr", loss, common, advantage=GroupNormalized())
