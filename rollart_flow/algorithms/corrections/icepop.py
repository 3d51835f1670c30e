"""IcePop: sg[pi_old / mu] where it lies in [low, high], else 0.

Tokens on which engine and trainer disagree too much have no gradient, instead of that of the cap.

Source: Ring-1T (2510.18855) section 3: 0.5 to 5; others take an upper end of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rollart_flow.algorithms.base import Exact, Tokens
from rollart_flow.fields import Within
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class IcePop(CheckedSettings, Exact):
    """The importance weight within a window, and 0 outside of it."""

    low: Annotated[float, Within(0, 1)] = 0.5
    """Weight pi_old / mu below which a token is dropped; at most 1."""
    high: Annotated[float, Within(1)] = 5.0
    """Weight above which a token is dropped; at least 1."""

    def __call__(self, tokens: Tokens) -> torch.Tensor:
        weight = Exact.__call__(self, tokens)
        return weight.masked_fill((weight < self.low) | (weight > self.high), 0.0)


def icepop(low: float = 0.5, high: float = 5.0) -> IcePop:
    """IcePop as a correction: `grpo(correction=icepop())`.

    Raises:
        SettingsError: a value out of its range.
    """
    return IcePop(low, high)
