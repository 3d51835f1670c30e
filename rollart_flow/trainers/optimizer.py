"""AdamW and its learning-rate schedule as frozen settings, which load no torch.

The invariant: the learning rate is a function of the step alone, so that a step that is replayed or
resumed has the rate it had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollart_flow.errors import SettingsError
from rollart_flow.validation import check_choice, check_count, check_number

if TYPE_CHECKING:
    import torch

Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class AdamW:
    """Settings of the optimizer; see `adamw`."""

    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    decay_steps: int = 0
    final_lr: float = 0.0

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
        """Rate of a training step, which counts from 1."""
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
        """The optimizer. Only matrices decay; norms, biases and the critic do not.

        Args:
            parameters: of the policy.
            critic: of its value head, a group of their own.
            critic_lr_scale: their learning rate as a multiple of the others'; `lr_scale` of each
                group says it.
        """
        import torch

        trained = list(parameters)
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
            {"params": list(critic), "weight_decay": 0.0, "lr_scale": critic_lr_scale},
        ]
        filled = [{"lr_scale": 1.0, **group} for group in groups if group["params"]]
        return torch.optim.AdamW(
            filled, lr=self.lr, betas=self.betas, eps=self.eps, foreach=False, fused=False
        )


def adamw(
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float = 1.0,
    warmup_steps: int = 0,
    schedule: Schedule = "constant",
    decay_steps: int = 0,
    final_lr: float = 0.0,
) -> AdamW:
    """AdamW for `train`.

    Args:
        lr: learning rate after the warm-up.
        betas: decay of the two running means.
        eps: added to the denominator.
        weight_decay: decoupled decay of matrices (ROLL Flash A.1: 0).
        clip_norm: largest norm of the gradient, larger ones are scaled down; 0 never clips.
        warmup_steps: training steps over which the rate grows linearly from 0.
        schedule: what follows the warm-up: constant, or linear or cosine down to `final_lr`.
        decay_steps: training step at which `final_lr` is reached; counts the warm-up.
        final_lr: rate from `decay_steps` on.

    Raises:
        SettingsError: a value out of its range.
    """
    return AdamW(
        lr, betas, eps, weight_decay, clip_norm,
        warmup_steps, schedule, decay_steps, final_lr,
    )  # fmt: skip
