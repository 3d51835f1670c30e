"""The critic of a trainer: a linear value head on the policy's last hidden state.

The value of an action token is that of the state before it: of the hidden state that predicts it.
The head begins at zero, so that every value is 0 until it has learned. It is part of the trainer's
state and checkpoints, and never of the published weights.
"""

from __future__ import annotations

import torch
from torch import nn

VALUE_HEAD = "value_head"
"""Prefix of the head's parameters beside those of the policy."""
VALUE = "value"
"""Kind of a tensor of a checkpoint's state that is a parameter of the head."""


class ValueHead(nn.Module):
    """One value for each hidden state."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.value = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] to float32 [A, 1]; no view of it, which a sharded head must not return."""
        values: torch.Tensor = self.value(hidden).float()
        return values

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Its parameters under the names that checkpoints have them."""
        return {f"{VALUE_HEAD}.{name}": p for name, p in self.value.named_parameters()}


def fresh_head(hidden_size: int) -> dict[str, torch.Tensor]:
    """Tensors of a head that has learned nothing, as a checkpoint's state has them."""
    parameters = ValueHead(hidden_size).parameters_by_name()
    return {f"{name}/{VALUE}": parameter.detach() for name, parameter in parameters.items()}
