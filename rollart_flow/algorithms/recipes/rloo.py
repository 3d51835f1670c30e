"""RLOO: REINFORCE with the mean of the other attempts as the baseline.

    -A log pi_theta,  A_i = r_i - mean(r_j, j != i) of the group

The mean over all tokens is the sum over whole trajectories, except for one factor of the batch.
There is no ratio: off-policy training needs a `correction`.

Source: 2402.14740.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import LeaveOneOut
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Vanilla
from rollart_flow.algorithms.recipe import Common, compose


def rloo(**common: Unpack[Common]) -> Algorithm:
    """RLOO for `train`, with the keywords of `Common`."""
    return compose("rloo", Vanilla(), common, advantage=LeaveOneOut())
