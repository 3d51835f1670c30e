"""Estimators of advantages: one variant, one short file."""

from rollart_flow.algorithms.advantages.constant import Constant
from rollart_flow.algorithms.advantages.group import GroupNormalized

__all__ = ["Constant", "GroupNormalized"]
