"""DAPO: GRPO with a higher upper clip, the mean over all tokens and no reference policy.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A),  A = (r - mean) / (std + eps) of the group

Source: DAPO (2503.14476) section 3. Its dynamic sampling is a filter of the pipeline, which refuses
groups whose rewards are all equal.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Clipped
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to


def dapo(*, clip: float = 0.2, clip_high: float = 0.28, **common: Unpack[WithRatio]) -> Algorithm:
    """DAPO for `train`; keywords as in `grpo`."""
    loss = Clipped(clip, clip_high, ratio_to=ratio_to(common))
    return compose("dapo", loss, common, advantage=GroupNormalized())
