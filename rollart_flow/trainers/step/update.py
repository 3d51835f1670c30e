"""One optimizer update: forward, loss and gradient of a minibatch, cut into micro-batches.

The loss of a minibatch is

    sum over its action tokens of weight x
        (token loss - entropy coefficient x entropy + critic coefficient x value loss)
    divided by (action tokens of the batch) x (episodes of the minibatch) / (those of the batch)

so that the mean over minibatches, by episodes, is the batch's mean over action tokens, and with one
minibatch exactly that. The invariant: the result does not depend on how rows are padded, bucketed
or ordered, but for rounding; the order is fixed, so the same inputs give the same bits.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import TARGETS, TokenLoss, Tokens
from rollart_flow.trainers.batch.micro_batch import MicroBatch
from rollart_flow.trainers.batch.passes import passes
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import TrainingBatch
from rollart_flow.trainers.ranks import ALONE, Ranks
from rollart_flow.trainers.step.critic import ValueHead
from rollart_flow.trainers.step.running import OneByOne, Pass, PolicyModel, Runner
from rollart_flow.trainers.step.scoring import OldPolicy, Scores, score


@dataclass(slots=True)
class Tally:
    """Sums over the action tokens of all updates of a step."""

    loss: float = 0.0
    """Mean over the batch and its epochs."""
    ratio: float = 0.0
    ratio_max: float = -math.inf
    clipped: float = 0.0
    kl: float = 0.0
    """k3 estimate of the divergence of the policy from the behavior policy."""
    entropy: float = 0.0
    value_loss: float = 0.0
    """Without its coefficient."""
    count: int = 0

    def add(self, found: TokenLoss, scores: Scores, micro: MicroBatch) -> None:
        """Add the action tokens of a micro-batch."""
        gap = (scores.logprobs.detach() - micro.behavior_logprobs).double()
        self.ratio += float(found.ratio.double().sum())
        self.ratio_max = max(self.ratio_max, float(found.ratio.max()))
        self.clipped += float(found.clipped.sum())
        self.kl += float((torch.expm1(gap) - gap).sum())
        self.entropy += float(scores.entropies.detach().double().sum())
        self.count += len(found.ratio)

    def all_reduce(self, ranks: Ranks) -> None:
        """Replace the sums by those over all ranks."""
        names = ("loss", "ratio", "clipped", "kl", "entropy", "value_loss", "count")
        sums = ranks.sum(np.array([getattr(self, name) for name in names], dtype=np.float64))
        for name, value in zip(names, sums.tolist(), strict=True):
            setattr(self, name, value)
        self.count = int(self.count)
        self.ratio_max = ranks.max(self.ratio_max)


@dataclass(frozen=True, slots=True)
class Updater:
    """Accumulates gradients of one policy, and its critic, under one algorithm."""

    model: PolicyModel
    algorithm: Algorithm
    reference: PolicyModel | None
    """Frozen; None if the algorithm needs none, or before the run reaches its version."""
    micro_batch_tokens: int
    critic: ValueHead | None = None
    ranks: Ranks = ALONE
    """Ranks of the trainer; each replica accumulates the gradient of its rows."""
    run: Runner | None = None
    """Runner of micro-batches; by default this process has all layers of the model."""
    reference_logprobs: Array | None = None
    """float32 [action tokens of all rows], NaN where they are not computed yet, kept for further
    epochs; None computes them in each epoch."""

    def accumulate(
        self,
        batch: TrainingBatch,
        rows: Array,
        share: float,
        tally: Tally,
        old_policy: OldPolicy | None = None,
    ) -> None:
        """Add the gradient of a minibatch to the parameters' `grad`.

        Args:
            batch: the whole batch.
            rows: the minibatch, as rows of the batch.
            share: fraction of the minibatch in the loss of the step, for the tally only.
            tally: the statistics to add to.
            old_policy: scores under the weights that the step starts from. Incomplete ones are
                filled in from all rows, before the weights change. None if not needed.
        """
        every = batch.actions.starts[-1]
        held, episodes = batch.count(rows), batch.count(np.arange(batch.rows))
        scale = 1.0 / (float(every) * held / episodes)
        most, ranks = self.micro_batch_tokens, (self.ranks.replica, self.ranks.replicas)
        todo = passes(
            batch.used_lengths, rows, most, *ranks, packed=batch.packed, trees=batch.trees
        )

        def each() -> Iterator[Pass]:
            for own in todo.own:
                yield self.passing(batch, own, scale, share, tally, old_policy)
            for blank in todo.blank:
                micro = self._micro(batch, blank)
                yield Pass(micro, partial(self._zero_loss, micro))

        (self.run or OneByOne(self.model))(each(), todo.count, gradient=True)
        if old_policy is not None and not old_policy.complete:
            old_policy.all_reduce(self.ranks)

    def passing(
        self,
        batch: TrainingBatch,
        rows: Array,
        scale: float,
        share: float,
        tally: Tally,
        old_policy: OldPolicy | None = None,
    ) -> Pass:
        """Return the pass of one micro-batch; its gradient is that of the loss times `scale`."""
        micro = self._micro(batch, rows)

        def visit(hidden: torch.Tensor) -> torch.Tensor:
            loss = self._loss(micro, hidden, tally, old_policy) * scale
            tally.loss += share * float(loss.detach())
            return loss

        return Pass(micro, visit)

    def _micro(self, batch: TrainingBatch, rows: Array) -> MicroBatch:
        return batch.micro_batch(rows, self.model.config.vocab_size).to(self.ranks.device)

    def _zero_loss(self, micro: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
        """Return a zero loss, with which this rank takes part in a pass of other ranks."""
        scores = score(self.model, hidden, micro, critic=self.critic)
        zero = scores.logprobs.sum() * 0.0
        return zero if scores.values is None else zero + scores.values.sum() * 0.0

    def _loss(
        self, micro: MicroBatch, hidden: torch.Tensor, tally: Tally, old_policy: OldPolicy | None
    ) -> torch.Tensor:
        """Compute the weighted sum of the losses of a micro-batch's action tokens."""
        bonus = self.algorithm.entropy
        critic = self.critic
        scores = score(self.model, hidden, micro, critic=critic, entropy_gradient=bonus > 0)
        if old_policy is not None and not old_policy.complete:
            old_policy.fill(micro, scores)
        micro = _with_behavior(micro, scores)
        found = self.algorithm.token_loss(self._tokens(micro, scores, old_policy))
        tally.add(found, scores, micro)
        losses = found.loss
        if bonus > 0:
            losses = losses - bonus * scores.entropies
        if critic is not None:
            losses = losses + self._value_loss(micro, scores, old_policy, tally)
        return (micro.weights * losses).sum()

    def _tokens(self, micro: MicroBatch, scores: Scores, old_policy: OldPolicy | None) -> Tokens:
        """Return the inputs of the algorithm for a micro-batch."""
        return Tokens(
            logprobs=scores.logprobs,
            behavior_logprobs=micro.behavior_logprobs,
            advantages=micro.advantages,
            reference_logprobs=self._reference_logprobs(micro),
            old_logprobs=None
            if old_policy is None
            else self._tensor(old_policy.logprobs[micro.at]),
            rows=micro.rows,
            chunks=micro.chunks,
            lags=micro.lags,
            columns=micro.columns,
        )

    def _reference_logprobs(self, micro: MicroBatch) -> torch.Tensor | None:
        """Return the reference's logprobs of a micro-batch; None without a reference."""
        if self.reference is None:
            return None
        known = self.reference_logprobs
        if known is not None and not np.isnan(known[micro.at]).any():
            return self._tensor(known[micro.at])
        with torch.no_grad():
            hidden = self.reference(*micro.inputs, **micro.features)
            found = score(self.reference, hidden, micro).logprobs
        if known is not None:
            known[micro.at] = found.cpu().numpy()
        return found

    def _value_loss(
        self, micro: MicroBatch, scores: Scores, old_policy: OldPolicy | None, tally: Tally
    ) -> torch.Tensor:
        """Compute the critic's loss at each action token, times its coefficient."""
        settings, values = self.algorithm.critic, scores.values
        assert settings is not None
        assert values is not None
        old = values.detach()
        if old_policy is not None and old_policy.values is not None:
            old = self._tensor(old_policy.values[micro.at])
        loss = settings.loss(values, micro.columns[TARGETS], old)
        tally.value_loss += float(loss.detach().double().sum())
        return settings.coefficient * loss

    def _tensor(self, values: Array) -> torch.Tensor:
        return torch.from_numpy(values).to(self.ranks.device)


def _with_behavior(micro: MicroBatch, scores: Scores) -> MicroBatch:
    """Return a micro-batch in which tokens whose behavior logprob is unknown are the policy's own.

    Only algorithms that do not read behavior logprobs train on such tokens; statistics do.
    """
    behavior = micro.behavior_logprobs
    known = torch.where(behavior.isnan(), scores.logprobs.detach(), behavior)
    return replace(micro, behavior_logprobs=known)
