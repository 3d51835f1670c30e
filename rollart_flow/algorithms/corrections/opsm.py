"""Off-policy sequence masking: failures that have become too unlikely teach nothing.

    factor = 0       where A < 0 and mean over the trajectory of log pi_old - log pi_theta > delta
             weight  elsewhere

It acts from the second update of a step on; in the first, pi_theta is pi_old.

Source: DeepSeek-V3.2 (2512.02556) section 3.1; slime's default of 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from rollart_flow.algorithms.base import Correction, Exact, Tokens
from rollart_flow.algorithms.losses.surrogates import segment_means
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Within
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class OPSM(CheckedSettings, Correction):
    """A correction, and 0 for failures that have become too unlikely."""

    delta: Annotated[float, Within(0)] = 1e-4
    """Mean log-ratio beyond which a trajectory's failures are dropped [nats per token]."""
    weight: Correction = field(default_factory=Exact)
    """Correction for pi_old / mu of tokens that are not dropped."""

    def __post_init__(self) -> None:
        CheckedSettings.__post_init__(self)
        if not isinstance(self.weight, Correction) or isinstance(self.weight, OPSM):
            raise SettingsError(f"weight={self.weight!r}: expected a correction such as tis()")

    @property
    def needs(self) -> frozenset[str]:
        return self.weight.needs | {"old_logprobs", "rows"}

    def __call__(self, tokens: Tokens) -> torch.Tensor:
        behind = tokens.need("old_logprobs") - tokens.logprobs.detach()
        left = segment_means(behind, tokens.need("rows")) > self.delta
        return self.weight(tokens).masked_fill(left & (tokens.advantages < 0), 0.0)


def opsm(delta: float = 1e-4, *, weight: Correction | None = None) -> OPSM:
    """Off-policy sequence masking as a correction: `grpo(correction=opsm(weight=tis()))`.

    Args:
        weight: correction for pi_old / mu of tokens that are not dropped; `Exact` by default.

    Raises:
        SettingsError: a value out of its range.
    """
    return OPSM(delta, Exact() if weight is None else weight)
