"""Micro-batches hold every row once, stay within their size and pad little."""

from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.trainers.batch.micro_batch import packed_tokens
from rollart_flow.trainers.batch.passes import (
    FIXED_COST_TOKENS,
    GROUP_COST_TOKENS,
    buckets,
    packed_cost,
    packs,
)


def cost(parts: list[list[int]]) -> int:
    return sum(len(part) * max(part) + FIXED_COST_TOKENS for part in parts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 20_000))
def test_packed_rows_fill_each_pass_but_the_last(lengths: list[int], size: int) -> None:
    found = packs(np.array(lengths), size)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    tokens = [[lengths[row] for row in rows] for rows in found]
    assert all(len(rows) == 1 or sum(rows) <= size for rows in tokens)
    assert all(sum(rows) + later[0] > size for rows, later in pairwise(tokens))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 20_000))
def test_every_row_once_and_within_the_size(lengths: list[int], size: int) -> None:
    array = np.array(lengths)
    found = buckets(array, size)
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for rows in found:
        assert len(rows) == 1 or len(rows) * array[rows].max() <= size
    assert all(a.tolist() == b.tolist() for a, b in zip(found, buckets(array, size), strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 2000), min_size=1, max_size=9), st.integers(1000, 8000))
def test_no_other_cut_of_the_sorted_rows_costs_less(lengths: list[int], size: int) -> None:
    ordered = sorted(lengths)
    best = None
    for cuts in product([False, True], repeat=len(ordered) - 1):
        parts = [[ordered[0]]]
        for cut, length in zip(cuts, ordered[1:], strict=True):
            if cut:
                parts.append([])
            parts[-1].append(length)
        if all(len(part) == 1 or len(part) * max(part) <= size for part in parts):
            best = min(best or cost(parts), cost(parts))
    found = [[lengths[row] for row in rows] for rows in buckets(np.array(lengths), size)]
    assert cost(found) == best


def test_uneven_lengths_are_padded_little() -> None:
    lengths = (np.random.default_rng(0).pareto(1.5, 512) * 100 + 50).clip(50, 4000).astype(int)
    found = buckets(lengths, 16_384)
    padded = sum(len(rows) * int(lengths[rows].max()) for rows in found)
    assert padded / lengths.sum() < 1.15
    assert len(lengths) * lengths.max() / lengths.sum() > 10  # one padded batch


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=20))
def test_a_packed_micro_batch_costs_what_is_laid_out_for_it(rows: list[list[int]]) -> None:
    lengths = np.array([len(row) for row in rows])
    values, starts = np.concatenate(rows), np.cumsum(lengths) - lengths
    tokens, _, packing = packed_tokens(values, starts, lengths)
    attended = sum(each.chains * each.longest + GROUP_COST_TOKENS for each in packing.groups)
    assert packed_cost(values, starts, lengths) == FIXED_COST_TOKENS + tokens.size + attended
