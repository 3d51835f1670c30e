"""Corrections for the mismatch between behavior policy and pi_old: one variant, one short file."""

from rollart_flow.algorithms.base import Exact
from rollart_flow.algorithms.corrections.icepop import IcePop, icepop
from rollart_flow.algorithms.corrections.opsm import OPSM, opsm
from rollart_flow.algorithms.corrections.tis import TIS, tis

__all__ = ["OPSM", "TIS", "Exact", "IcePop", "icepop", "opsm", "tis"]
