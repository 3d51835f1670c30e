"""REINFORCE++ with a baseline: advantages on one scale for the whole batch, PPO's clip.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A)
    A = (r - mean of the group) / (std of that over the batch + eps)

Source: 2501.03262. Its penalty is `kl=..., kl_estimator="k2"`.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import BatchNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Clipped
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to


def reinforce_plus_plus(
    *, clip: float = 0.2, clip_high: float = 0.2, **common: Unpack[WithRatio]
) -> Algorithm:
    """REINFORCE++ for `train`; keywords as in `grpo`."""
    loss = Clipped(clip, clip_high, ratio_to=ratio_to(common))
    return compose("reinforce_plus_plus", loss, common, advantage=BatchNormalized())
