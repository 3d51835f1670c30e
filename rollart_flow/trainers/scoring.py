"""Log-probabilities of action tokens under a model, as their sampling drew them.

The invariant: recomputed under the weights that drew a token, the value is the engine's behavior
logprob but for rounding: temperature, allowed tokens and kept tokens are applied again.
"""

from dataclasses import dataclass

import torch

from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.trainers.batch import MicroBatch, TrainingBatch
from rollart_flow.trainers.buckets import buckets

EXCLUDED_LOGIT = -1e30
"""Stands for minus infinity; finite, so that 0 x log 0 is 0 in entropies and their gradients."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says of the action tokens of a micro-batch; float32 [A] each."""

    logprobs: torch.Tensor
    """Natural log, of the distribution that was drawn from."""
    entropies: torch.Tensor
    """Of that distribution, in nats."""


def score(model: Qwen3, micro: MicroBatch, *, entropy_gradient: bool = False) -> Scores:
    """Score a micro-batch. Logits are computed at the positions that predict action tokens only.

    Args:
        entropy_gradient: whether `entropies` are differentiable; `logprobs` always are.
    """
    hidden = model(micro.token_ids).flatten(0, 1)
    logits = model.logits(hidden.index_select(0, micro.predictors)).float()
    logits = logits / micro.temperature[:, None]
    if micro.support is not None:
        logits = logits.masked_fill(~micro.support, EXCLUDED_LOGIT)
    every = torch.log_softmax(logits, dim=-1)
    logprobs = every.gather(1, micro.targets[:, None]).squeeze(1)
    spread = every if entropy_gradient else every.detach()
    return Scores(logprobs, -(spread.exp() * spread).sum(-1))


def recompute_logprobs(
    model: Qwen3, batch: TrainingBatch, micro_batch_tokens: int = 16384
) -> list[torch.Tensor]:
    """Logprobs of a batch under a model: for each row, float32 [its action tokens].

    Raises:
        TrainerError: a row cannot be scored (greedy, empty, tokens outside the vocabulary).
    """
    vocabulary = model.config.vocab_size
    batch.check(vocabulary)
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for rows in buckets(batch.used_lengths, micro_batch_tokens):
            scores = score(model, batch.micro_batch(rows, vocabulary))
            parts = torch.split(scores.logprobs, batch.actions.lengths[rows].tolist())
            found.update(zip(rows.tolist(), parts, strict=True))
    return [found[row] for row in range(batch.rows)]
