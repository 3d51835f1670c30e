"""Estimators of advantages: one variant, one short file."""

from rollart_flow.algorithms.advantages.batch_normalized import BatchNormalized
from rollart_flow.algorithms.advantages.centered import GroupCentered
from rollart_flow.algorithms.advantages.chunk_returns import ChunkReturns
from rollart_flow.algorithms.advantages.constant import Constant
from rollart_flow.algorithms.advantages.gae import GAE
from rollart_flow.algorithms.advantages.gigpo import GiGPO
from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.advantages.leave_one_out import LeaveOneOut
from rollart_flow.algorithms.advantages.step_returns import StepReturns
from rollart_flow.algorithms.advantages.vtrace import VTrace

__all__ = [
    "GAE",
    "BatchNormalized",
    "ChunkReturns",
    "Constant",
    "GiGPO",
    "GroupCentered",
    "GroupNormalized",
    "LeaveOneOut",
    "StepReturns",
    "VTrace",
]
