"""AdamW and its learning-rate schedule as frozen settings, which load no torch.

The invariant: the learning rate is a function of the step alone, so that a replayed or resumed step
has the same rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from rollart_flow.errors import SettingsError
from rollart_flow.validation import check_choice, check_count, check_number

if TYPE_CHECKING:
    import torch

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class AdamW:
    """AdamW for `train`, with its learning-rate schedule.

    Raises:
        SettingsError: a value is out of its range.
    """

    lr: float = 3e-3
    """Learning rate after the warm-up."""
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two running means."""
    eps: float = 1e-8
    """Term added to the denominator."""
    weight_decay: float = 0.0
    """Decoupled decay of matrices (ROLL Flash A.1: 0)."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; larger ones are scaled down. 0 never clips."""
    warmup_steps: int = 0
    """Training steps over which the rate grows linearly from 0."""
    schedule: Schedule = "constant"
    """Rate after the warm-up: constant, or linear or cosine down to `final_lr`."""
    decay_steps: int = 0
    """Training step at which `final_lr` is reached, the warm-up included."""
    final_lr: float = 0.0
    """Rate from `decay_steps` on."""

    def __post_init__(self) -> None:
        check_number("adamw.lr", self.lr, low=0, open_low=True)
        object.__setattr__(self, "betas", tuple(self.betas))  # a list after JSON
        if len(self.betas) != 2:
            raise SettingsError(f"adamw.betas={self.betas!r}: expected two numbers")
        for beta in self.betas:
            check_number("adamw.betas", beta, low=0, high=1 - 1e-9)
        check_number("adamw.eps", self.eps, low=0, open_low=True)
        check_number("adamw.weight_decay", self.weight_decay, low=0)
        check_number("adamw.clip_norm", self.clip_norm, low=0)
        check_count("adamw.warmup_steps", self.warmup_steps, low=0)
        check_choice("adamw.schedule", self.schedule, ("constant", "linear", "cosine"))
        check_number("adamw.final_lr", self.final_lr, low=0, high=self.lr)
        if self.schedule != "constant":
            check_count("adamw.decay_steps", self.decay_steps, low=self.warmup_steps + 1)
        elif self.decay_steps or self.final_lr:
            raise SettingsError("adamw.decay_steps and final_lr need schedule linear or cosine")

    def learning_rate(self, step: int) -> float:
        """Return the rate of a training step; steps count from 1."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        done = min(1.0, (step - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        left = 1.0 - done if self.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
        return self.final_lr + (self.lr - self.final_lr) * left

    def build(
        self,
        parameters: Iterable[torch.nn.Parameter],
        critic: Iterable[torch.nn.Parameter] = (),
        critic_lr_scale: float = 1.0,
    ) -> torch.optim.AdamW:
        """Build the optimizer. Only matrices decay; norms, biases and the critic do not.

        Args:
            parameters: parameters of the policy.
            critic: parameters of the value head, which form a group.
            critic_lr_scale: learning rate of that group as a multiple of the policy's, stored in
                each group as `lr_scale`.
        """
        from rollart_flow.trainers.eager_adamw import EagerAdamW

        trained = list(parameters)
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
            {"params": list(critic), "weight_decay": 0.0, "lr_scale": critic_lr_scale},
        ]
        filled = [{"lr_scale": 1.0, **group} for group in groups if group["params"]]
        return EagerAdamW(
            filled,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            foreach=at_once(trained),
            fused=False,
        )


def at_once(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether an update of these parameters calls one operator for all of them.

    It does if they are whole and on a CPU: the bits are those of one operator for each, which costs
    more than its arithmetic if parameters are small. A GPU has other kernels for it, with other
    bits.
    """
    import torch

    return all(type(each) is torch.nn.Parameter and each.is_cpu for each in parameters)


adamw = AdamW
"""The name of `AdamW` in pipeline files."""
