"""Tapered off-policy REINFORCE (TOPR), plain and weighted.

    R > 0:   loss = -positive A log pi_theta
    R <= 0:  loss = -negative sg[clip(rho, 0, 1)] A log pi_theta

R is the trajectory's final reward. The loss imitates a success of any policy, and lowers the
probability of a failure only while that is still likely. Weights other than 1 give ROLL's weighted
TOPR.

Source: 2503.14286, eq. 6; ROLL for the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.losses.ratio import RatioLoss
from rollart_flow.algorithms.recipe import Common, compose, ratio_of
from rollart_flow.validation import check_number


@dataclass(frozen=True, slots=True)
class TOPR(RatioLoss):
    """Weighted log-likelihood of each action token."""

    reads: ClassVar[frozenset[str]] = frozenset({"reward"})

    positive: float = 1.0
    """Weight of trajectories whose final reward is above 0."""
    negative: float = 1.0
    """Weight of all others."""

    def __post_init__(self) -> None:
        RatioLoss.__post_init__(self)
        check_number("positive", self.positive, low=0)
        check_number("negative", self.negative, low=0)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens)).detach()
        good = tokens.need("reward") > 0
        weight = torch.where(good, self.positive, self.negative * ratio.clamp(max=1.0))
        return TokenLoss(
            -weight * tokens.advantages * tokens.logprobs, ratio, ~good & (ratio > 1.0)
        )


def topr(
    *,
    positive: float = 1.0,
    negative: float = 1.0,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """TOPR for `train`.

    Args:
        positive: weight of trajectories whose final reward is above 0.
        negative: weight of all others.
        ratio_to: denominator of the ratio, `behavior` or `old`; by default `old` with a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = TOPR(positive, negative, ratio_to=ratio_of(ratio_to, common))
    return compose("topr", loss, common, advantage=GroupNormalized())
