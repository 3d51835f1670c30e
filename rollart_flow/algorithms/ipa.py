"""IPA: interaction chunks as actions, with their discounted returns.

    -sg[G_c m_c] log pi_theta                      returns above 0
    -sg[clip(rho_c, 0, 1) G_c m_c] log pi_theta    others

G_c = gamma^(chunks that follow c) R; see `algorithms.losses.ipa` for the ratio and the mask.

Source: ROLL's agentic report (2512.24873); gamma and high are a contributor's, it gives none.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.chunk_returns import ChunkReturns
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.ipa import IPA
from rollart_flow.algorithms.recipe import Common, compose


def ipa(
    *,
    gamma: float = 0.95,
    high: float = 5.0,
    **common: Unpack[Common],
) -> Algorithm:
    """IPA for `train`.

    Args:
        gamma: discount of one chunk.
        high: mean ratio of pi_old to the behavior policy beyond which a chunk is dropped.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose("ipa", IPA(high), common, advantage=ChunkReturns(gamma))
