"""Decoupled PPO (AReaL): the clip is around a proximal policy, the behavior policy has a weight.

    -w min(r A, clip(r, 1 - clip, 1 + clip_high) A),  r = pi_theta / pi_prox,  w = sg[pi_prox / mu]

and 0 where w > cap. See `algorithms.losses.decoupled` for the two proximal policies.

Sources: 2110.00641; AReaL (2505.24298) section 5.2.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.decoupled import Decoupled, Proximal
from rollart_flow.algorithms.recipe import Common, compose


def decoupled_ppo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.2,
    cap: float = 5.0,
    proximal: Proximal = "recomputed",
    **common: Unpack[Common],
) -> Algorithm:
    """Decoupled PPO for `train`.

    Args:
        clip: how far below 1 the ratio may go before its gradient is cut.
        clip_high: how far above 1.
        cap: weight beyond which a token is dropped.
        proximal: `recomputed` (pi_old, one more forward pass where a batch is cut into minibatches)
            or `interpolated` between the behavior policy and the trained one.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose(
        "decoupled_ppo",
        Decoupled(clip, clip_high, cap, proximal),
        common,
        advantage=GroupNormalized(),
    )
