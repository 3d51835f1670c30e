"""Assignment of the rows of a minibatch to ranks and micro-batches.

Every rank knows the whole batch and cuts it for all ranks, so that no exchange is needed. The
invariants: every row is in one micro-batch of one rank; all ranks take part in the same number of
passes, since each pass gathers weights that are spread over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollart_flow.trainers.batch.buckets import buckets
from rollart_flow.trainers.batch.ragged import Array


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward passes of one rank over some rows of a batch."""

    own: list[Array]
    """Rows of each micro-batch."""
    blank: list[Array]
    """Further micro-batches, in which only other ranks have rows to compute: one short row each,
    whose result is discarded."""

    @property
    def count(self) -> int:
        """Number of all passes; the same in every rank."""
        return len(self.own) + len(self.blank)


def passes(
    lengths: Array, rows: Array, micro_batch_tokens: int, replica: int = 0, replicas: int = 1
) -> Passes:
    """The passes of one rank over a minibatch.

    Args:
        lengths: tokens of every row of the batch, int64 [rows of the batch].
        rows: the minibatch.
        micro_batch_tokens: see `buckets`.
        replica: index of the model replica that this rank belongs to, see `Ranks.replica`.
        replicas: number of replicas.
    """
    cut = [
        [own[bucket] for bucket in buckets(lengths[own], micro_batch_tokens)]
        for own in split_rows(lengths, np.sort(rows), replicas)
    ]
    most = max(map(len, cut))
    shortest = rows[[int(lengths[rows].argmin())]]
    return Passes(cut[replica], [shortest] * (most - len(cut[replica])))


def split_rows(lengths: Array, rows: Array, replicas: int) -> list[Array]:
    """Rows of each replica, balanced by tokens: longest first, each to the least-loaded replica."""
    if replicas == 1:
        return [rows]
    loads = np.zeros(replicas, dtype=np.int64)
    owners = np.zeros(len(rows), dtype=np.int64)
    for at in np.argsort(-lengths[rows], kind="stable"):
        owners[at] = loads.argmin()
        loads[owners[at]] += lengths[rows[at]]
    return [rows[owners == replica] for replica in range(replicas)]
