"""Identity Preference Optimization: a squared distance of the margin from its target.

    h    = log(pi_theta / pi_ref)(preferred) - log(pi_theta / pi_ref)(rejected)
    loss = (h - 1 / (2 beta))^2

Where preferences are certain, DPO drives h to infinity, so that the tie to the reference policy is
lost; here it has a target.

Source: 2310.12036, eq. 17, whose tau is beta. Log-likelihoods are sums over tokens, as in the
paper; TRL divides them by the number of tokens.
"""

from dataclasses import dataclass
from typing import Unpack

from rollart_flow.algorithms.advantages.preferences import PairLoss
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Floats
from rollart_flow.algorithms.recipe import OfPreferences, compose_preferences


@dataclass(frozen=True, slots=True)
class IPO(PairLoss):
    """IPO's loss of the margin of a pair."""

    def of_margin(self, margin: Floats) -> tuple[Floats, Floats]:
        distance = margin - 1.0 / (2.0 * self.beta)
        return distance**2, 2.0 * distance


def ipo(*, beta: float = 0.1, **common: Unpack[OfPreferences]) -> Algorithm:
    """IPO for `train`, on batches of pairs from `stored(..., prefer=...)`.

    Args:
        beta: strength of the tie to the reference policy: the target of the margin is 1 / (2 beta).
        **common: see `OfPreferences`.
    """
    return compose_preferences("ipo", IPO(beta), common)
