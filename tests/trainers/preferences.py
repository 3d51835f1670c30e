"""Batches of preferences for the tests of trainers, and the losses of papers in float64.

The losses are written from their papers' formulas, of log-likelihoods that transformers' own model
computes; torch differentiates them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch.nn.functional import logsigmoid

from rollart_flow.algorithms import Algorithm, dpo, ipo, kto
from rollart_flow.operators.batch_columns import Prepared, prepare
from rollart_flow.trainers.base import Trainer
from tests.builders import batch_table
from tests.trainers.cases import (
    Row,
    make_rows,
    reference_logprobs,
    reference_model,
    table,
)

LABELS = [True, False, False, True, True, False, False, True]
PAIRS = [0, 0, 1, 1, 2, 3, 2, 3]
GROUPS = ["a", "a", "a", "b", "b", "c", "b", "c"]
PROMPT = 3
"""Tokens before the first action of each row, so that each row begins alike in length."""


def preference_rows(seed: int) -> list[Row]:
    """Rows of which the first few tokens are observed."""
    rows = make_rows(len(LABELS), seed=seed, longest=14)
    for row in rows:
        row.action_mask[:PROMPT] = [False] * PROMPT
        row.action_mask[-1] = True
    return rows


def preference_batch(rows: Sequence[Row], **changed: Sequence[Any]) -> pa.Table:
    """The rows as the train operator gets them from a source with preferences."""
    count = len(rows)
    more: dict[str, Sequence[Any]] = {
        "group_id": GROUPS[:count],
        "domain": ["a"] * count,
        "policy_version_start": [0] * count,
        "staleness": [0] * count,
        "preferred": LABELS[:count],
        "pair": PAIRS[:count],
    }
    found = table(rows).drop_columns(["advantage", "weight"])
    for name, column in zip(more, batch_table({**more, **changed}).columns, strict=True):
        if column.null_count < count:
            found = found.append_column(name, column)
    return found


def train_on(trainer: Trainer, algorithm: Algorithm, step: int, batch: pa.Table) -> Any:
    """Take one step as the train operator does."""
    return trainer.train_step(step, prepared(trainer, algorithm, step, batch).rows)


def prepared(trainer: Trainer, algorithm: Algorithm, step: int, batch: pa.Table) -> Prepared:
    """The batch with all columns that training needs."""
    return prepare(algorithm, batch, step - 1, trainer.recompute_old_logprobs)


@dataclass(frozen=True)
class Sums:
    """Log-likelihoods of whole rows under the policy, differentiable, and under the reference."""

    policy: torch.Tensor
    means: torch.Tensor
    """By token, of the policy."""
    reference: torch.Tensor
    mismatched: torch.Tensor
    """log(pi_theta / pi_ref) of mismatched rows, without a gradient."""

    def margins(self) -> torch.Tensor:
        """h of each pair."""
        ratios = self.policy - self.reference
        good = [at for _, at in sorted((PAIRS[at], at) for at in range(8) if LABELS[at])]
        bad = [at for _, at in sorted((PAIRS[at], at) for at in range(8) if not LABELS[at])]
        return ratios[good] - ratios[bad]


def of_dpo(sums: Sums) -> torch.Tensor:
    """2305.18290, eq. 7, with labels that are wrong in a tenth, and the likelihood of RPO."""
    h = 0.3 * sums.margins()
    loss = -(0.9 * logsigmoid(h) + 0.1 * logsigmoid(-h)).mean()
    return loss - 0.2 * sums.means[torch.tensor(LABELS)].mean()


def of_ipo(sums: Sums) -> torch.Tensor:
    """2310.12036, eq. 17."""
    return ((sums.margins() - 1 / (2 * 0.3)) ** 2).mean()


def of_kto(sums: Sums) -> torch.Tensor:
    """2402.01306, section 4."""
    z0 = sums.mismatched.mean().clamp(min=0)
    return _kto(sums.policy - sums.reference - z0)


def of_kto_at_zero(sums: Sums) -> torch.Tensor:
    """KTO without its reference point."""
    return _kto(sums.policy - sums.reference)


def _kto(gap: torch.Tensor) -> torch.Tensor:
    good = torch.tensor(LABELS)
    value = torch.where(
        good, 1.2 * (1 - torch.sigmoid(0.3 * gap)), 0.7 * (1 - torch.sigmoid(-0.3 * gap))
    )
    return value.mean()


Formula = Callable[[Sums], torch.Tensor]

CASES: dict[str, tuple[Algorithm, Formula]] = {
    "dpo": (dpo(beta=0.3, label_smoothing=0.1, nll=0.2), of_dpo),
    "ipo": (ipo(beta=0.3), of_ipo),
    "kto": (kto(beta=0.3, desirable=1.2, undesirable=0.7), of_kto),
    "kto at zero": (
        kto(beta=0.3, desirable=1.2, undesirable=0.7, reference_point="zero"),
        of_kto_at_zero,
    ),
}


def loss_and_gradient(
    formula: Formula,
    rows: Sequence[Row],
    weights: dict[str, torch.Tensor],
    reference: dict[str, torch.Tensor],
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss of a batch, and its gradient under Hugging Face names, float64."""
    model, frozen = reference_model(weights), reference_model(reference)
    logprobs = [reference_logprobs(model, row) for row in rows]
    with torch.no_grad():
        base = torch.stack([reference_logprobs(frozen, row).sum() for row in rows])
        crossed = [_crossed(row, rows[at]) for row, at in zip(rows, _others(), strict=True)]
        gaps = [
            reference_logprobs(model, row).sum() - reference_logprobs(frozen, row).sum()
            for row in crossed
        ]
    loss = formula(
        Sums(
            torch.stack([each.sum() for each in logprobs]),
            torch.stack([each.mean() for each in logprobs]),
            base,
            torch.stack(gaps),
        )
    )
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), found


def norm(gradient: dict[str, torch.Tensor]) -> float:
    """Norm over all tensors."""
    return float(torch.stack([each.norm() for each in gradient.values()]).norm())


def _others() -> list[int]:
    """The next row of another group, cyclically."""
    return [3, 3, 3, 5, 5, 6, 7, 0]


def _crossed(row: Row, other: Row) -> Row:
    first, second = row.actions[0], other.actions[0]
    return Row(
        [*row.token_ids[:first], *other.token_ids[second:]],
        [*row.action_mask[:first], *other.action_mask[second:]],
        [*row.logprobs[:first], *other.logprobs[second:]],
        other.sampling,
    )
