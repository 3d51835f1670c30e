"""Estimators of advantages."""

from rollart_flow.algorithms.advantages.critics import GAE, VTrace
from rollart_flow.algorithms.advantages.groups import (
    BatchNormalized,
    Constant,
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
)
from rollart_flow.algorithms.advantages.turns import ChunkReturns, GiGPO, StepReturns

__all__ = [
    "GAE", "BatchNormalized", "ChunkReturns", "Constant", "GiGPO", "GroupCentered",
    "GroupNormalized", "LeaveOneOut", "StepReturns", "VTrace",
]  # fmt: skip
