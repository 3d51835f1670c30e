"""Losses of action tokens: one variant, one short file."""

from rollart_flow.algorithms.losses.ppo import Clipped
from rollart_flow.algorithms.losses.vanilla import Vanilla

__all__ = ["Clipped", "Vanilla"]
