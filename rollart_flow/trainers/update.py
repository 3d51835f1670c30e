"""One optimizer update: forward, loss and gradient of a minibatch, cut into micro-batches.

The loss of a minibatch is

    sum over its action tokens of weight x (token loss - entropy coefficient x entropy)
    divided by (action tokens of the batch) x (rows of the minibatch) / (rows of the batch)

so that the mean over minibatches, by rows, is the batch's mean over action tokens, and with one
minibatch exactly that. The invariant: the result does not depend on how rows are padded, bucketed
or ordered, but for rounding; the order is fixed, so the same inputs give the same bits.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Tokens
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.trainers.batch import MicroBatch, TrainingBatch
from rollart_flow.trainers.buckets import buckets
from rollart_flow.trainers.ragged import Array
from rollart_flow.trainers.scoring import score


@dataclass(slots=True)
class Tally:
    """Sums over action tokens, of all updates of a step."""

    loss: float = 0.0
    """Already a mean over the batch and its epochs."""
    ratio: float = 0.0
    ratio_max: float = -math.inf
    clipped: float = 0.0
    kl: float = 0.0
    """k3 estimate of the divergence of the policy from the behavior policy."""
    entropy: float = 0.0
    count: int = 0

    def add(self, ratio: torch.Tensor, clipped: torch.Tensor, micro: MicroBatch,
            logprobs: torch.Tensor, entropies: torch.Tensor) -> None:  # fmt: skip
        """Add the action tokens of a micro-batch; arguments are detached, [A] each."""
        gap = (logprobs - micro.behavior_logprobs).double()
        self.ratio += float(ratio.double().sum())
        self.ratio_max = max(self.ratio_max, float(ratio.max()))
        self.clipped += float(clipped.sum())
        self.kl += float((torch.expm1(gap) - gap).sum())
        self.entropy += float(entropies.double().sum())
        self.count += len(ratio)


@dataclass(frozen=True, slots=True)
class Updater:
    """Accumulates gradients of one policy under one algorithm."""

    model: Qwen3
    algorithm: Algorithm
    reference: Qwen3 | None
    """Frozen; None where the algorithm needs none."""
    micro_batch_tokens: int

    def accumulate(self, batch: TrainingBatch, rows: Array, share: float, tally: Tally) -> None:
        """Add the gradient of a minibatch to the parameters' `grad`.

        Args:
            rows: the minibatch, as rows of the batch.
            share: part of the step's loss that the minibatch stands for; weighs the tally only.
        """
        every = batch.actions.starts[-1]
        scale = 1.0 / (float(every) * len(rows) / batch.rows)
        ordered = np.sort(rows)
        for bucket in buckets(batch.used_lengths[ordered], self.micro_batch_tokens):
            self.backward(batch, ordered[bucket], scale, share, tally)

    def backward(
        self, batch: TrainingBatch, rows: Array, scale: float, share: float, tally: Tally
    ) -> None:
        """Add the gradient of one micro-batch, its loss times `scale`."""
        micro = batch.micro_batch(rows, self.model.config.vocab_size)
        loss = self._loss(micro, tally) * scale
        loss.backward()  # type: ignore[no-untyped-call]
        tally.loss += share * float(loss.detach())

    def _loss(self, micro: MicroBatch, tally: Tally) -> torch.Tensor:
        """Weighted sum of the losses of a micro-batch's action tokens."""
        bonus = self.algorithm.entropy
        scores = score(self.model, micro, entropy_gradient=bonus > 0)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = score(self.reference, micro).logprobs
        found = self.algorithm.token_loss(
            Tokens(scores.logprobs, micro.behavior_logprobs, micro.advantages, reference)
        )
        tally.add(
            found.ratio, found.clipped, micro, scores.logprobs.detach(), scores.entropies.detach()
        )
        losses = found.loss - bonus * scores.entropies if bonus > 0 else found.loss
        return (micro.weights * losses).sum()
