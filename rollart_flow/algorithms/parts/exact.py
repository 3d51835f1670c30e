"""The exact importance weight sg[pi_old / mu]: unbiased, with unbounded variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Correction, Tokens

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Exact(Correction):
    """The default correction of a ratio to pi_old."""

    def __call__(self, tokens: Tokens) -> torch.Tensor:
        import torch

        return torch.exp(tokens.need("old_logprobs") - tokens.behavior_logprobs)
