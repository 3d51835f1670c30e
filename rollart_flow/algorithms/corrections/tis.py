"""Truncated importance sampling: sg[min(pi_old / mu, cap)].

Sources: ROLL Flash (2510.11345) eq. 12 with a cap of 5; 2 in slime, 1.2 in ROLL's code. The cap
bounds the variance, and biases the weight by the part that it cuts off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Exact, Tokens
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TIS(CheckedSettings, Exact):
    """The importance weight, truncated at a cap."""

    cap: Positive = 2.0
    """Largest weight pi_old / mu of a token."""

    def __call__(self, tokens: Tokens) -> torch.Tensor:
        return Exact.__call__(self, tokens).clamp(max=self.cap)


def tis(cap: float = 2.0) -> TIS:
    """Truncated importance sampling as a correction: `grpo(correction=tis(cap=2.0))`.

    Raises:
        SettingsError: the cap is not above 0.
    """
    return TIS(cap)
