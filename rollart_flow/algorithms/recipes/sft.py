"""Supervised fine-tuning: the likelihood of all actions, whatever their reward.

    loss = -log pi_theta

On the best attempt of each group, or on those that a filter accepts, it is rejection sampling (best
of n, RAFT). Rewards and logprobs of the behavior policy play no role.

Sources: 2203.02155 section 3.5 (SFT); RAFT (2304.06767) for training on the best of a group.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import Constant
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Vanilla
from rollart_flow.algorithms.recipe import Common, compose


def sft(**common: Unpack[Common]) -> Algorithm:
    """Supervised fine-tuning for `train`: the mean over all action tokens of a batch."""
    return compose("sft", Vanilla(), common, advantage=Constant())
