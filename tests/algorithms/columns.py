"""Action tokens of several trajectories as plain numbers, for references, and as `Tokens`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import torch

from rollart_flow.algorithms.base import TokenLoss, Tokens


@dataclass(frozen=True)
class Token:
    """One action token; fields are those of `Tokens` and the column `reward`, one number each."""

    logprobs: float
    behavior_logprobs: float
    advantages: float
    reference_logprobs: float
    old_logprobs: float
    reward: float
    rows: int
    chunks: int
    lags: int

    @property
    def ratio(self) -> float:
        """pi_theta / mu"""
        return math.exp(self.logprobs - self.behavior_logprobs)

    @property
    def moved(self) -> float:
        """pi_theta / pi_old"""
        return math.exp(self.logprobs - self.old_logprobs)

    @property
    def mismatch(self) -> float:
        """pi_old / mu"""
        return math.exp(self.old_logprobs - self.behavior_logprobs)


def make_tokens(trajectories: int = 60, seed: int = 0, spread: float = 0.4) -> list[Token]:
    """Trajectories of uneven lengths, in chunks of 1 to 4 tokens; both signs of everything."""
    random = Random(seed)
    found: list[Token] = []
    chunk = -1
    for row in range(trajectories):
        reward = random.choice([-1.0, 0.0, 0.5, 2.0])
        advantage, lag = random.gauss(0, 1), random.randint(0, 3)
        for _ in range(random.randint(1, 3)):
            chunk += 1
            for _ in range(random.randint(1, 4)):
                behavior = -3 * random.random()
                old = behavior + random.gauss(0, spread)
                found.append(
                    Token(
                        logprobs=old + random.gauss(0, spread),
                        behavior_logprobs=behavior,
                        advantages=advantage,
                        reference_logprobs=behavior + random.gauss(0, spread),
                        old_logprobs=old,
                        reward=reward,
                        rows=row,
                        chunks=chunk,
                        lags=max(0, lag - random.randint(0, 1)),
                    )
                )
    return found


def one_policy(tokens: Sequence[Token]) -> list[Token]:
    """The same tokens, drawn and trained by one and the same policy."""
    return [replace(t, logprobs=t.behavior_logprobs, old_logprobs=t.behavior_logprobs)
            for t in tokens]  # fmt: skip


def tensors(tokens: Sequence[Token]) -> Tokens:
    """Float64, `logprobs` differentiable; rows and chunks count from 0 again."""
    whole = ("rows", "chunks", "lags")
    columns = {
        field.name: torch.tensor(
            [getattr(token, field.name) for token in tokens],
            dtype=torch.int64 if field.name in whole else torch.float64,
        )
        for field in fields(Token)
    }
    for name in ("rows", "chunks"):
        columns[name] = torch.unique(columns[name], return_inverse=True)[1]
    columns["logprobs"].requires_grad_()
    stored = {"reward": columns.pop("reward")}
    arguments: dict[str, Any] = columns
    return Tokens(**arguments, columns=stored)


def loss_and_slope(
    loss: Callable[[Tokens], TokenLoss], tokens: Sequence[Token]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss of each token, gradient of their sum by logprobs), float64 each."""
    arguments = tensors(tokens)
    found = loss(arguments)
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert arguments.logprobs.grad is not None
    return found.loss.detach(), arguments.logprobs.grad


def assert_is(
    loss: Callable[[Tokens], TokenLoss],
    tokens: Sequence[Token],
    expected: Sequence[tuple[float, float]],
) -> None:
    """The loss of each token and its slope are these, to rounding in float64."""
    found = loss_and_slope(loss, tokens)
    for column, name in enumerate(("loss", "slope")):
        wanted = torch.tensor([pair[column] for pair in expected], dtype=torch.float64)
        worst = float((found[column] - wanted).abs().max())
        assert worst < 1e-11, f"{name}: {worst}"
