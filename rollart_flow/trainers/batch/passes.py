"""Which rows of a minibatch each rank computes, in which micro-batches.

Every rank knows the whole batch and cuts it for all ranks, so that nobody asks anybody. The
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
    """Further micro-batches, in which only others have something to compute: one short row each,
    whose result counts for nothing."""

    @property
    def count(self) -> int:
        """Of all of them; the same in every rank."""
        return len(self.own) + len(self.blank)


def passes(
    lengths: Array, rows: Array, micro_batch_tokens: int, share: int = 0, count: int = 1
) -> Passes:
    """The passes of one rank over a minibatch.

    Args:
        lengths: tokens of every row of the batch, int64 [rows of the batch].
        rows: the minibatch.
        micro_batch_tokens: see `buckets`.
        share: which part of the rows: `Ranks.share`.
        count: of shares.
    """
    cut = [
        [own[bucket] for bucket in buckets(lengths[own], micro_batch_tokens)]
        for own in shares(lengths, np.sort(rows), count)
    ]
    most = max(map(len, cut))
    shortest = rows[[int(lengths[rows].argmin())]]
    return Passes(cut[share], [shortest] * (most - len(cut[share])))


def shares(lengths: Array, rows: Array, ranks: int) -> list[Array]:
    """Rows of each rank, balanced by tokens: the longest first, each to who has the fewest."""
    if ranks == 1:
        return [rows]
    loads = np.zeros(ranks, dtype=np.int64)
    owners = np.zeros(len(rows), dtype=np.int64)
    for at in np.argsort(-lengths[rows], kind="stable"):
        owners[at] = loads.argmin()
        loads[owners[at]] += lengths[rows[at]]
    return [rows[owners == rank] for rank in range(ranks)]
