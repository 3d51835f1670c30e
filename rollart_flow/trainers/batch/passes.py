"""Assignment of the rows of a minibatch to ranks and micro-batches, with little or no padding.

Every rank knows the whole batch and cuts it for all ranks, so that no exchange is needed. The
invariants: every row is in one micro-batch of one rank; all ranks take part in the same number of
passes, since each pass gathers weights that are spread over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollart_flow.trainers.batch.ragged import Array, Ragged

FIXED_COST_TOKENS = 256
"""Cost of one more micro-batch in padded tokens; measured for small models on a CPU."""
GROUP_COST_TOKENS = 32
"""Cost of one more group of attention (`models.packing.ChainGroup`), measured likewise."""


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
    lengths: Array,
    rows: Array,
    micro_batch_tokens: int,
    replica: int = 0,
    replicas: int = 1,
    *,
    packed: bool,
    trees: Ragged | None = None,
) -> Passes:
    """The passes of one rank over a minibatch.

    Args:
        lengths: tokens of every row of the batch, int64 [rows of the batch].
        rows: the minibatch.
        micro_batch_tokens: see `packs` and `buckets`.
        replica: index of the model replica that this rank belongs to, see `Ranks.replica`.
        replicas: number of replicas.
        packed: whether the rows of a micro-batch are packed or padded.
        trees: tokens of every row, if packed rows are to be ordered by them (`tree_packs`).
    """
    if trees is not None:
        cut = tree_packs(trees, lengths, rows, micro_batch_tokens, replicas)
    else:
        cut_rows = packs if packed else buckets
        cut = [
            [own[part] for part in cut_rows(lengths[own], micro_batch_tokens)]
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


def packs(lengths: Array, micro_batch_tokens: int) -> list[Array]:
    """Return the row indices of each packed micro-batch, shorter rows first.

    Args:
        lengths: tokens of each row, int64 [rows].
        micro_batch_tokens: most tokens of a micro-batch. A row that is longer has one of its own.
    """
    order = np.argsort(lengths, kind="stable")
    cuts, held = [], 0
    for at, length in enumerate(lengths[order].tolist()):
        if held and held + length > micro_batch_tokens:
            cuts.append(at)
            held = 0
        held += length
    return np.split(order, cuts) if len(order) else []


def tree_packs(
    tokens: Ragged, lengths: Array, rows: Array, micro_batch_tokens: int, replicas: int = 1
) -> list[list[Array]]:
    """Return the rows of each packed micro-batch of each replica, in the order of their tokens.

    Rows with equal prefixes are then adjacent, at every depth of the tree that they are, so that as
    few prefixes as possible are cut apart. A prefix counts once in a micro-batch.

    Args:
        tokens: tokens of every row of the batch.
        lengths: tokens of each row that are needed, int64 [rows of the batch].
        rows: the rows to cut.
        micro_batch_tokens: most distinct tokens of a micro-batch, but for a single row.
        replicas: number of replicas, among which the distinct tokens are spread evenly.
    """
    chains = {row: tokens.values[tokens.starts[row] :][: lengths[row]] for row in rows.tolist()}
    order = sorted(chains, key=lambda row: chains[row].tobytes(), reverse=True)
    shared = [0, *(common_prefix(chains[a], chains[b]) for a, b in pairwise(order))]
    fresh = [len(chains[row]) - common for row, common in zip(order, shared, strict=True)]
    most = sum(fresh) / replicas
    cut: list[list[list[int]]] = [[] for _ in range(replicas)]
    held = taken = replica = 0
    for row, new in zip(order, fresh, strict=True):
        if replica + 1 < replicas and taken >= most * (replica + 1):
            replica += 1
        taken += new
        parts = cut[replica]
        if not parts or held + new > micro_batch_tokens:
            parts.append([])
            held, new = 0, len(chains[row])
        parts[-1].append(row)
        held += new
    return [[np.array(part) for part in parts] for parts in cut]


def common_prefix(one: Array, other: Array) -> int:
    """Return the number of leading tokens that are equal."""
    most = min(len(one), len(other))
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if len(differ) else most


def shared_prefixes(values: Array, starts: Array, lengths: Array) -> Iterator[tuple[int, int, int]]:
    """Yield each row, an earlier one, and how many of its first tokens are also that one's.

    No earlier row shares more, since the rows are sorted by their tokens; a row that is the
    beginning of another one comes after it.

    Args:
        values: tokens of all rows of a batch.
        starts: place in `values` of the first token of each row [B].
        lengths: tokens of each row that are needed [B].
    """
    chains = [values[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    order = sorted(range(len(chains)), key=lambda row: chains[row].tobytes(), reverse=True)
    yield order[0], order[0], 0
    for before, row in pairwise(order):
        yield row, before, common_prefix(chains[before], chains[row])


def packed_cost(values: Array, starts: Array, lengths: Array) -> int:
    """Return the cost of one packed micro-batch in tokens, those of its fixed cost included.

    All layers compute its distinct tokens; attention computes the padded tokens of its groups.

    Args: those of `shared_prefixes`.
    """
    shared = np.zeros_like(lengths)
    for row, _, common in shared_prefixes(values, starts, lengths):
        shared[row] = common
    distinct = int((lengths - shared).sum())
    rows = lengths[shared < lengths]
    groups = buckets(rows, int(lengths.sum()), GROUP_COST_TOKENS)
    attended = sum(len(part) * int(rows[part].max()) + GROUP_COST_TOKENS for part in groups)
    return FIXED_COST_TOKENS + distinct + attended


def buckets(
    lengths: Array, micro_batch_tokens: int, fixed_cost: int = FIXED_COST_TOKENS
) -> list[Array]:
    """Return the row indices of each padded micro-batch, shorter rows first.

    Rows are sorted by length and cut where the padded size plus the fixed cost of each micro-batch
    is least. The cut is exact (dynamic programming), and a function of the lengths alone.

    Args:
        lengths: tokens of each row, int64 [rows].
        micro_batch_tokens: most padded tokens (rows x longest row) of a micro-batch. A row that is
            longer has one of its own.
        fixed_cost: cost of one more micro-batch, in padded tokens.
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    count = len(order)
    cost = np.zeros(count + 1, dtype=np.int64)
    cut = np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        longest = max(1, int(ordered[end - 1]))
        first = min(end - 1, max(0, end - micro_batch_tokens // longest))
        begins = np.arange(first, end)
        costs = cost[begins] + (end - begins) * longest + fixed_cost
        best = int(costs.argmin())
        cost[end], cut[end] = costs[best], begins[best]
    found: list[Array] = []
    end = count
    while end > 0:
        found.append(order[cut[end] : end])
        end = int(cut[end])
    return found[::-1]
