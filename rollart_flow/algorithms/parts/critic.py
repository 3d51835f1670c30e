"""Settings of a critic, and the loss of its values.

The critic is a linear head on the policy's last hidden state. Its loss towards targets T, at each
action token with value V and V_old from the weights that the step starts from, is

    (V - T)^2 / 2                                                clip = 0
    max((V - T)^2, (clip(V, V_old - clip, V_old + clip) - T)^2) / 2

Sources: PPO (1707.06347) section 5, and its reference code for the clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Critic:
    """A value head that is trained with the policy and never published."""

    coefficient: float = 0.5
    """Factor of the value loss, whose gradient reaches the policy's trunk."""
    clip: float = 0.2
    """Distance of a value from its old one beyond which it has no gradient; 0 does not bound it."""
    lr_scale: float = 1.0
    """Learning rate of the head, as a multiple of the policy's."""

    def __post_init__(self) -> None:
        check_number("critic.coefficient", self.coefficient, low=0, open_low=True)
        check_number("critic.clip", self.clip, low=0)
        check_number("critic.lr_scale", self.lr_scale, low=0, open_low=True)

    def loss(
        self, values: torch.Tensor, targets: torch.Tensor, old_values: torch.Tensor
    ) -> torch.Tensor:
        """Compute the value loss of each action token, without the coefficient; all [action
        tokens]."""
        import torch

        error = (values - targets) ** 2
        if self.clip > 0:
            bounded = old_values + (values - old_values).clamp(-self.clip, self.clip)
            error = torch.maximum(error, (bounded - targets) ** 2)
        return error / 2
