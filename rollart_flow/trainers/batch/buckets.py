"""Grouping of trajectories into micro-batches with little padding.

Rows are sorted by length and cut where the padded size plus the fixed cost of each micro-batch is
least; the cut is exact (dynamic programming), and a function of the lengths alone.
"""

import numpy as np

from rollart_flow.trainers.batch.ragged import Array

FIXED_COST_TOKENS = 256
"""Cost of one more micro-batch in padded tokens; measured for small models on a CPU."""


def buckets(lengths: Array, micro_batch_tokens: int) -> list[Array]:
    """Row indices of each micro-batch, shorter rows first.

    Args:
        lengths: tokens of each row, int64 [rows].
        micro_batch_tokens: most padded tokens (rows x longest row) of a micro-batch. A row that is
            longer has one of its own.
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
        costs = cost[begins] + (end - begins) * longest + FIXED_COST_TOKENS
        best = int(costs.argmin())
        cost[end], cut[end] = costs[best], begins[best]
    found: list[Array] = []
    end = count
    while end > 0:
        found.append(order[cut[end] : end])
        end = int(cut[end])
    return found[::-1]
