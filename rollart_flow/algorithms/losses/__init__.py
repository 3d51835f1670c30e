"""Losses of action tokens: one variant, one short file."""

from rollart_flow.algorithms.losses.cispo import CISPO
from rollart_flow.algorithms.losses.decoupled import Decoupled
from rollart_flow.algorithms.losses.double_sided import DoubleSided
from rollart_flow.algorithms.losses.gspo import GSPO
from rollart_flow.algorithms.losses.ipa import IPA
from rollart_flow.algorithms.losses.kimi import Kimi
from rollart_flow.algorithms.losses.ppo import Clipped
from rollart_flow.algorithms.losses.topr import TOPR
from rollart_flow.algorithms.losses.truncated import Truncated
from rollart_flow.algorithms.losses.vanilla import Vanilla

__all__ = [
    "CISPO",
    "GSPO",
    "IPA",
    "TOPR",
    "Clipped",
    "Decoupled",
    "DoubleSided",
    "Kimi",
    "Truncated",
    "Vanilla",
]
