"""Log-probabilities of action tokens under a model and their stored sampling settings.

The invariant: recomputed under the weights that sampled a token, the value is the engine's behavior
logprob but for rounding: temperature, allowed tokens and kept tokens are applied again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from rollart_flow.trainers.batch.micro_batch import MicroBatch
from rollart_flow.trainers.batch.passes import passes
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import TrainingBatch
from rollart_flow.trainers.ranks import ALONE, Ranks
from rollart_flow.trainers.step.critic import ValueHead
from rollart_flow.trainers.step.running import OneByOne, Pass, PolicyModel, Runner

EXCLUDED_LOGIT = -1e30
"""Stands for minus infinity; finite, so that 0 x log 0 is 0 in entropies and their gradients."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Logprobs, entropies and values of the action tokens of a micro-batch; float32 [A] each."""

    logprobs: torch.Tensor
    """Natural logarithms, of the distribution that the token was sampled from."""
    entropies: torch.Tensor
    """Entropies of that distribution, in nats."""
    values: torch.Tensor | None
    """Values of the states that the tokens were sampled in; None without a critic."""


def score(
    model: PolicyModel,
    hidden: torch.Tensor,
    micro: MicroBatch,
    *,
    critic: ValueHead | None = None,
    entropy_gradient: bool = False,
) -> Scores:
    """Score a micro-batch from the hidden states that predict its action tokens.

    Args:
        model: whose output projection is applied.
        hidden: its hidden states at the micro-batch's `predictors`, [A, E].
        micro: the micro-batch.
        critic: the value head, differentiable.
        entropy_gradient: whether `entropies` are differentiable; `logprobs` always are.
    """
    logits = model.logits(hidden).float() / micro.temperature[:, None]
    if micro.sampling_mask is not None:
        logits = logits.masked_fill(~micro.sampling_mask, EXCLUDED_LOGIT)
    every = torch.log_softmax(logits, dim=-1)
    logprobs = every.gather(1, micro.targets[:, None]).squeeze(1)
    spread = every if entropy_gradient else every.detach()
    values = None if critic is None else critic(hidden).squeeze(-1)
    return Scores(logprobs, -(spread.exp() * spread).sum(-1), values)


@dataclass(slots=True)
class OldPolicy:
    """Scores of a batch under the weights that its step starts from; [action tokens of all rows].

    They are filled in before the weights change, and are the same in all updates of the step.
    """

    logprobs: Array
    """float32: log pi_old."""
    values: Array | None
    """float32; None without a critic."""
    complete: bool = False
    """Whether every token is filled in; until then, each pass fills in its own tokens."""

    @classmethod
    def empty(cls, batch: TrainingBatch, critic: ValueHead | None) -> "OldPolicy":
        """Return the scores of a batch before any is computed."""
        count = int(batch.actions.starts[-1])
        values = None if critic is None else np.zeros(count, dtype=np.float32)
        return cls(np.zeros(count, dtype=np.float32), values)

    def fill(self, micro: MicroBatch, scores: Scores) -> None:
        """Store the scores of a micro-batch under the weights that the step starts from."""
        self.logprobs[micro.at] = scores.logprobs.detach().cpu().numpy()
        if self.values is not None and scores.values is not None:
            self.values[micro.at] = scores.values.detach().cpu().numpy()

    def all_reduce(self, ranks: Ranks) -> None:
        """Sum over all ranks, each of which filled in its rows; completes the scores."""
        self.logprobs = ranks.sum(self.logprobs)
        if self.values is not None:
            self.values = ranks.sum(self.values)
        self.complete = True


def reference_logprobs(
    model: PolicyModel, batch: TrainingBatch, micro_batch_tokens: int, ranks: Ranks
) -> Array:
    """Return the logprobs of all action tokens under a reference, which each rank has whole."""
    # With stages, not all ranks take part in sums.
    alone = ranks if ranks.stages == 1 else Ranks(device=ranks.device)
    return recompute_old_logprobs(model, batch, micro_batch_tokens, ranks=alone).logprobs


def recompute_old_logprobs(
    model: PolicyModel,
    batch: TrainingBatch,
    micro_batch_tokens: int,
    critic: ValueHead | None = None,
    ranks: Ranks = ALONE,
    run: Runner | None = None,
) -> OldPolicy:
    """One forward pass over a batch, of which each replica computes some rows; one process by
    default.

    Args: `run` runs micro-batches through the model; by default this process has all layers.

    Raises:
        TrainerError: a row cannot be scored (greedy, empty, tokens outside the vocabulary).
    """
    vocabulary = model.config.vocab_size
    batch.check(vocabulary)
    old_policy = OldPolicy.empty(batch, critic)
    every = np.arange(batch.rows)
    lengths, own = batch.used_lengths, (ranks.replica, ranks.replicas)
    todo = passes(lengths, every, micro_batch_tokens, *own, packed=batch.packed, trees=batch.trees)

    def each() -> Iterator[Pass]:
        for at, rows in enumerate([*todo.own, *todo.blank]):
            micro = batch.micro_batch(rows, vocabulary).to(ranks.device)
            yield Pass(micro, partial(fill, micro, blank=at >= len(todo.own)))

    def fill(micro: MicroBatch, hidden: torch.Tensor, *, blank: bool) -> None:
        scores = score(model, hidden, micro, critic=critic)
        if not blank:
            old_policy.fill(micro, scores)

    (run or OneByOne(model))(each(), todo.count, gradient=False)
    old_policy.all_reduce(ranks)
    return old_policy


def recompute_logprobs(
    model: PolicyModel, batch: TrainingBatch, micro_batch_tokens: int = 16384
) -> list[torch.Tensor]:
    """Return logprobs of a batch under a model: for each row, float32 [action tokens].

    Raises:
        TrainerError: see `recompute_old_logprobs`.
    """
    logprobs = torch.from_numpy(recompute_old_logprobs(model, batch, micro_batch_tokens).logprobs)
    return list(torch.split(logprobs, batch.actions.lengths.tolist()))
