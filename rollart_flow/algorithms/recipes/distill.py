"""Distillation: the policy learns the distribution of another one, the teacher.

    d       = log pi_theta - log pi_T                 of each stored token
    reverse:  loss = sg[min(pi_theta / mu, cap)] (d, with the gradient sg[d] of log pi_theta)
    forward:  loss = -sg[min(pi_T / mu, cap)] d

Both are estimates from the sampled tokens: of KL(pi_theta || pi_T), which seeks a mode of the
teacher, and of KL(pi_T || pi_theta), which covers all of them. The weights account for the policy
mu that sampled the tokens: with `buffer(...)`, where that is the policy itself, `reverse` is
on-policy distillation; on stored trajectories of the teacher, `forward` is imitation of them.
Rewards play no role. The tokens of both policies must be the same.

Sources: GKD (2306.13649), sections 2 and 3; MiniLLM (2306.08543), section 2.2, for the gradient of
the reverse divergence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

from rollart_flow.algorithms.advantages.groups import Constant
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.recipe import Common, WithoutTeacher, compose
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import os

    from rollart_flow.models.policy import Policy

Direction = Literal["reverse", "forward"]
"""Which divergence is lowered, see the module."""


@dataclass(frozen=True, slots=True)
class Distillation(CheckedSettings, Loss):
    """Divergence of the policy from its teacher, by sampled tokens."""

    direction: Direction = "reverse"
    """Which divergence is lowered."""
    cap: Positive = 2.0
    """Largest weight of a token."""

    @property
    def anchor(self) -> RatioTo:
        return "behavior"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"reference_logprobs"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        teacher, held = tokens.need("reference_logprobs"), tokens.logprobs.detach()
        sampled = held if self.direction == "reverse" else teacher
        ratio = torch.exp(sampled - tokens.behavior_logprobs)
        gap = held - teacher
        moved = tokens.logprobs - held
        loss = gap + gap * moved if self.direction == "reverse" else -gap - moved
        weighted = tokens.advantages * ratio.clamp(max=self.cap) * loss
        return TokenLoss(weighted, ratio, ratio > self.cap)


def distill(
    teacher: str | os.PathLike[str] | Policy,
    *,
    direction: Direction = "reverse",
    cap: float = 2.0,
    **common: Unpack[WithoutTeacher],
) -> Algorithm:
    """Distillation for `train`.

    Args:
        teacher: folder of a model with the policy's tokens, as `rollart export` writes it, or a
            `Policy.from_pretrained(...)`.
        direction: "reverse" lowers KL(pi_theta || teacher), "forward" KL(teacher || pi_theta).
        cap: largest weight by which a token accounts for the policy that sampled it.
        **common: see `WithoutTeacher`.
    """
    given: Common = {**common, "teacher": teacher}
    return compose("distill", Distillation(direction, cap), given, advantage=Constant())
