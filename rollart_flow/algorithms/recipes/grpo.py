"""Group Relative Policy Optimization: rewards normalized in groups, PPO's clipped ratio.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A),  A = (r - mean) / (std + eps) of the group

Sources: ROLL Flash (2510.11345) section 2.1, eq. 2 and 3; DAPO (2503.14476) for the higher upper
clip and the mean over all tokens.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Clipped
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to
from rollart_flow.errors import SettingsError


def grpo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.28,
    dual: float | None = None,
    eps: float | None = None,
    **common: Unpack[WithRatio],
) -> Algorithm:
    """GRPO for `train`.

    Args:
        clip: distance below 1 at which the gradient of the ratio is cut.
        clip_high: distance above 1; larger than `clip` lets unlikely tokens grow (DAPO).
        dual: ratio beyond which a negative advantage has no gradient; None for no bound.
        eps: term added to the standard deviation of a group's rewards; 1e-6 by default.
        **common: see `WithRatio`.
    """
    if eps is not None and "advantage" in common:
        raise SettingsError(f"eps={eps!r} is of GRPO's own advantage; leave it or advantage= out")
    loss = Clipped(clip, clip_high, dual, ratio_to=ratio_to(common))
    normalized = GroupNormalized() if eps is None else GroupNormalized(eps)
    return compose("grpo", loss, common, advantage=normalized)
