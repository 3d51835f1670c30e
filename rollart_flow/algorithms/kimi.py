"""Kimi's loss: the policy gradient, and a squared log-ratio towards the start of the step.

    -A log pi_theta + (tau / 2) (log pi_theta - log pi_old)^2,  A = r - mean of the group

Source: Kimi k1.5 (2501.12599) section 2.3.2.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.centered import GroupCentered
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.kimi import Kimi
from rollart_flow.algorithms.recipe import Common, compose


def kimi(
    *,
    tau: float = 0.1,
    **common: Unpack[Common],
) -> Algorithm:
    """Kimi's loss for `train`.

    Args:
        tau: factor of the squared log-ratio.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose("kimi", Kimi(tau), common, advantage=GroupCentered())
