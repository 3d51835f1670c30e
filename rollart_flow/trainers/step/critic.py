"""The critic of a trainer: a linear value head on the policy's last hidden state.

The value of an action token is computed from the hidden state that predicts the token. The head
starts at zero, so that every initial value is 0. It is part of the trainer's state and checkpoints,
and never of the published weights.
"""

from __future__ import annotations

import torch
from torch import nn

VALUE_HEAD = "value_head"
"""Prefix of the head's parameters beside those of the policy."""
VALUE = "value"
"""Kind of the tensors of a checkpoint's state that are parameters of the head."""


class ValueHead(nn.Module):
    """One value for each hidden state."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.value = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [A, E] to float32 [A, 1], which is no view, as a sharded head requires."""
        values: torch.Tensor = self.value(hidden).float()
        return values

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Return the parameters under their names in checkpoints."""
        return {f"{VALUE_HEAD}.{name}": p for name, p in self.value.named_parameters()}


def fresh_head(hidden_size: int) -> dict[str, torch.Tensor]:
    """Return the tensors of an untrained head under their names in a checkpoint's state."""
    parameters = ValueHead(hidden_size).parameters_by_name()
    return {f"{name}/{VALUE}": parameter.detach() for name, parameter in parameters.items()}
