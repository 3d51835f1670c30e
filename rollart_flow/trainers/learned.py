"""What a training step changes: the policy, its critic's head where there is one, the optimizer.

Parameters have their Hugging Face names, those of the head begin with `value_head`. The invariant:
what `state` gives is what `restore` needs, and only the policy is ever published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.models.folder import check_tensors
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers.checkpoint import Checkpoint
from rollart_flow.trainers.critic import VALUE, ValueHead
from rollart_flow.trainers.optimizer import AdamW

_OPTIMIZER_TENSORS = ("step", "exp_avg", "exp_avg_sq")


class Learned:
    """Model, head and optimizer in this process, float32. Subclasses spread them."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: AdamW,
    ) -> None:
        """Args: `tensors` are the initial weights, copied.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        check_tensors(config, tensors)
        self.model = Qwen3(config)
        self.model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        self.critic: ValueHead | None = None
        scale = 1.0
        if algorithm.critic is not None:
            self.critic, scale = ValueHead(config.hidden_size), algorithm.critic.lr_scale
        self._arrange()
        self.policy = dict(self.model.named_parameters())
        self.head = {} if self.critic is None else self.critic.parameters_by_name()
        self._settings = settings
        self.optimizer = settings.build(self.policy.values(), self.head.values(), scale)

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Those of the policy and of the head."""
        return {**self.policy, **self.head}

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next updates."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]

    def clip(self) -> float:
        """Scale the gradient down to the largest norm; the norm before that."""
        largest = self._settings.clip_norm or math.inf
        trained = self.parameters.values()
        return float(torch.nn.utils.clip_grad_norm_(trained, largest, foreach=False))

    def settle(self) -> None:
        """Make the parameters ready for an update, after passes without a gradient."""

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Some of these tensors, detached, where a process sees all of each; no copies."""
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _arrange(self) -> None:
        """Put model and critic where they are trained, before their parameters are named."""

    def _fitting(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A tensor of a checkpoint, laid out as a parameter is."""
        return tensor

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint needs beside the policy's weights, as `<parameter>/<tensor>`."""
        state = {f"{name}/{VALUE}": p.detach() for name, p in self.head.items()}
        for name, parameter in self.parameters.items():
            for kind, tensor in self.optimizer.state[parameter].items():
                state[f"{name}/{kind}"] = tensor
        return state

    def check(self, found: Checkpoint, folder: Path) -> None:
        """Refuse a checkpoint that lacks what is needed.

        Raises:
            TrainerError: it has no critic.
        """
        if missing := [name for name in self.head if f"{name}/{VALUE}" not in found.state]:
            raise TrainerError(f"checkpoint {folder} has no critic: {missing[0]} is not in it")

    def restore(self, found: Checkpoint) -> None:
        """Become what a checkpoint that was checked holds."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                of_head = name in self.head
                value = found.state[f"{name}/{VALUE}"] if of_head else found.weights[name]
                parameter.copy_(self._fitting(value, parameter))
                self.optimizer.state[parameter] = {
                    kind: self._fitting(found.state[f"{name}/{kind}"], parameter)
                    for kind in _OPTIMIZER_TENSORS
                    if f"{name}/{kind}" in found.state
                }
