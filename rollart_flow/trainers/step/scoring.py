"""Log-probabilities of action tokens under a model, as their sampling drew them.

The invariant: recomputed under the weights that drew a token, the value is the engine's behavior
logprob but for rounding: temperature, allowed tokens and kept tokens are applied again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from rollart_flow.trainers.batch.passes import passes
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import MicroBatch, TrainingBatch
from rollart_flow.trainers.ranks import ALONE, Ranks
from rollart_flow.trainers.step.critic import ValueHead
from rollart_flow.trainers.step.running import OneByOne, Pass, PolicyModel, Runner

EXCLUDED_LOGIT = -1e30
"""Stands for minus infinity; finite, so that 0 x log 0 is 0 in entropies and their gradients."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says of the action tokens of a micro-batch; float32 [A] each."""

    logprobs: torch.Tensor
    """Natural log, of the distribution that was drawn from."""
    entropies: torch.Tensor
    """Of that distribution, in nats."""
    values: torch.Tensor | None
    """Of the states that the tokens were drawn in; None without a critic."""


def score(
    model: PolicyModel,
    states: torch.Tensor,
    micro: MicroBatch,
    *,
    critic: ValueHead | None = None,
    entropy_gradient: bool = False,
) -> Scores:
    """Score a micro-batch. Logits are computed at the positions that predict action tokens only.

    Args:
        model: whose output projection is applied.
        states: its hidden states of the micro-batch, [B, T, E].
        micro: the micro-batch.
        critic: the value head, differentiable.
        entropy_gradient: whether `entropies` are differentiable; `logprobs` always are.
    """
    hidden = states.flatten(0, 1).index_select(0, micro.predictors)
    logits = model.logits(hidden).float() / micro.temperature[:, None]
    if micro.support is not None:
        logits = logits.masked_fill(~micro.support, EXCLUDED_LOGIT)
    every = torch.log_softmax(logits, dim=-1)
    logprobs = every.gather(1, micro.targets[:, None]).squeeze(1)
    spread = every if entropy_gradient else every.detach()
    values = None if critic is None else critic(hidden).squeeze(-1)
    return Scores(logprobs, -(spread.exp() * spread).sum(-1), values)


@dataclass(slots=True)
class OldPolicy:
    """What the weights that a step starts from say of its batch; [action tokens of all rows] each.

    It is filled in before any of them changes, and the same in all updates of the step.
    """

    logprobs: Array
    """float32: log pi_old."""
    values: Array | None
    """float32; None without a critic."""
    complete: bool = False
    """Whether every token is filled in; until then, each pass fills in what it sees."""

    @classmethod
    def empty(cls, batch: TrainingBatch, critic: ValueHead | None) -> "OldPolicy":
        """Of a batch that nothing has been computed of."""
        count = int(batch.actions.starts[-1])
        values = None if critic is None else np.zeros(count, dtype=np.float32)
        return cls(np.zeros(count, dtype=np.float32), values)

    def fill(self, micro: MicroBatch, scores: Scores) -> None:
        """Take in the scores of a micro-batch under the weights of the start."""
        self.logprobs[micro.at] = scores.logprobs.detach().cpu().numpy()
        if self.values is not None and scores.values is not None:
            self.values[micro.at] = scores.values.detach().cpu().numpy()

    def share(self, ranks: Ranks) -> None:
        """Every rank has filled in its rows: from now on it is complete, in all of them."""
        self.logprobs = ranks.sum(self.logprobs)
        if self.values is not None:
            self.values = ranks.sum(self.values)
        self.complete = True


def recompute_old_logprobs(
    model: PolicyModel,
    batch: TrainingBatch,
    micro_batch_tokens: int,
    critic: ValueHead | None = None,
    ranks: Ranks = ALONE,
    run: Runner | None = None,
) -> OldPolicy:
    """One forward pass over a batch, of which each rank computes its share; alone by default.

    Args: `run` takes micro-batches through the model; by default this process has all its layers.

    Raises:
        TrainerError: a row cannot be scored (greedy, empty, tokens outside the vocabulary).
    """
    vocabulary = model.config.vocab_size
    batch.check(vocabulary)
    start = OldPolicy.empty(batch, critic)
    every = np.arange(batch.rows)
    todo = passes(batch.used_lengths, every, micro_batch_tokens, ranks.share, ranks.shares)

    def each() -> Iterator[Pass]:
        for at, rows in enumerate([*todo.own, *todo.blank]):
            micro = batch.micro_batch(rows, vocabulary).to(ranks.device)
            yield Pass(micro, partial(fill, micro, blank=at >= len(todo.own)))

    def fill(micro: MicroBatch, states: torch.Tensor, *, blank: bool) -> None:
        scores = score(model, states, micro, critic=critic)
        if not blank:
            start.fill(micro, scores)

    (run or OneByOne(model))(each(), todo.count, gradient=False)
    start.share(ranks)
    return start


def recompute_logprobs(
    model: PolicyModel, batch: TrainingBatch, micro_batch_tokens: int = 16384
) -> list[torch.Tensor]:
    """Logprobs of a batch under a model: for each row, float32 [its action tokens].

    Raises:
        TrainerError: as `recompute_old_logprobs`.
    """
    logprobs = torch.from_numpy(recompute_old_logprobs(model, batch, micro_batch_tokens).logprobs)
    return list(torch.split(logprobs, batch.actions.lengths.tolist()))
