"""Imitation: the plain negative log-likelihood of the actions of a batch. Rewards play no role."""

from rollart_flow.algorithms.advantages.constant import Constant
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.vanilla import Vanilla


def supervised() -> Algorithm:
    """loss = -log pi_theta, averaged over all action tokens of the batch."""
    return Algorithm("supervised", Vanilla(), Constant())
