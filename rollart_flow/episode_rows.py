"""Rows of episodes: which rows are the branches of one attempt, and each attempt as one row.

Filters and estimators of advantages see an episode as one row, so that it counts once. The
invariant: the rows of an episode are adjacent, in the order of its branches.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Starts = np.ndarray[tuple[int], np.dtype[np.int64]]

_CHAIN = frozenset({"token_ids", "action_mask", "logprobs", "token_versions"})
"""Lists with an item for each token of the chain."""
_ACTIONS = frozenset({"kept_token_ids", "values", "old_logprobs", "reference_logprobs"})
"""Lists with an item for each action token."""
_SUMS = frozenset({"tokens", "tool_calls", "tool_errors"})


def starts_of(rows: pa.Table) -> Starts:
    """Return the place of the first row of each episode, and the number of rows.

    Rows without the columns of episodes, and rows of earlier versions, are one episode each.
    """
    every = np.arange(rows.num_rows + 1)
    if "branch" not in rows.column_names or rows["branch"].null_count == rows.num_rows:
        return every
    branch = rows["branch"].to_numpy()  # NaN where it is null
    if not (branch > 0).any():
        return every
    names = np.array(rows["episode_id"].to_pylist(), dtype=object)
    begins = ~(branch > 0)
    begins[0] = True
    begins[1:] |= names[1:] != names[:-1]
    return np.append(np.flatnonzero(begins), rows.num_rows)


def as_episodes(rows: pa.Table, starts: Starts | None = None) -> pa.Table:
    """Return one row for each episode, as `episodes.whole` joins its branches.

    Its chain, turns, versions and counts are those of the episode; its other columns are those of
    branch 0. Rows that are one episode each are returned as they are.
    """
    starts = starts_of(rows) if starts is None else starts
    if len(starts) == rows.num_rows + 1:
        return rows
    own, shared = rows.combine_chunks(), _shared(rows)
    joined = [
        _joined(name, own[name].combine_chunks(), starts, shared) for name in own.column_names
    ]
    return pa.table(joined, schema=rows.schema)


def _shared(rows: pa.Table) -> Starts:
    """Return the number of tokens that each row shares with its parent."""
    if "shared_tokens" not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.int64)
    counts: Starts = pc.fill_null(rows["shared_tokens"], 0).to_numpy().astype(np.int64)
    return counts


def _joined(name: str, column: pa.Array, starts: Starts, shared: Starts) -> pa.Array:
    if name in _CHAIN:
        return _lists(column, starts, shared)
    if name in _ACTIONS:
        return _lists(column, starts, np.zeros_like(shared))
    if name == "turns":
        return _turns(column, starts, shared)
    if name in _REDUCED:
        return _reduced(column, starts, _REDUCED[name])
    return column.take(pa.array(starts[:-1]))


def _lists(column: pa.ListArray, starts: Starts, skipped: Starts) -> pa.ListArray:
    """Join the lists of each episode, without the first `skipped` items of each row."""
    lengths = _lengths(column)
    values, ends = column.flatten(), np.cumsum(lengths)
    if skipped.any():
        before = np.repeat(ends - lengths, lengths)
        inside = np.arange(len(values)) - before >= np.repeat(skipped, lengths)
        values = values.filter(pa.array(inside))
        lengths = np.maximum(lengths - skipped, 0)
        ends = np.cumsum(lengths)
    offsets = np.concatenate([[0], ends])[starts].astype(np.int32)
    nulls = pc.is_null(column).to_numpy(zero_copy_only=False)[starts[:-1]]
    if nulls.any():
        joined = pa.ListArray.from_arrays(offsets, values, mask=pa.array(nulls))
    else:
        joined = pa.ListArray.from_arrays(offsets, values)
    return joined.cast(column.type)


def _turns(column: pa.ListArray, starts: Starts, shared: Starts) -> pa.ListArray:
    """Join turns, with offsets into the chain of the episode."""
    lengths = _lengths(column)
    turns = column.flatten()
    last = pc.fill_null(pc.struct_field(turns, "end"), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    # The chain of a row ends with its last turn.
    chain = np.where(lengths > 0, np.append(last, 0)[ends - 1], shared)
    own = np.maximum(chain - shared, 0)
    before = np.cumsum(own) - own
    before -= np.repeat(before[starts[:-1]], np.diff(starts))
    moved = np.repeat(before - shared, lengths)
    fields = []
    for field in column.type.value_type:
        values = pc.struct_field(turns, field.name)
        if field.name in ("start", "end"):
            values = pa.array(values.to_numpy(zero_copy_only=False) + moved, field.type)
        fields.append(values)
    made = pa.StructArray.from_arrays(fields, fields=list(column.type.value_type))
    offsets = np.concatenate([[0], ends])[starts].astype(np.int32)
    return pa.ListArray.from_arrays(offsets, made).cast(column.type)


def _lengths(column: pa.ListArray) -> Starts:
    lengths: Starts = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    return lengths


Reduce = Callable[[list[Any]], Any]

_REDUCED: Mapping[str, Reduce] = {
    "policy_version_start": min,
    "policy_version_end": max,
    **dict.fromkeys(_SUMS, sum),
}
"""Reduction of the values of an episode's rows, by column."""


def _reduced(column: pa.Array, starts: Starts, reduce: Reduce) -> pa.Array:
    values, found = column.to_pylist(), []
    for start, end in pairwise(starts.tolist()):
        known = [value for value in values[start:end] if value is not None]
        found.append(reduce(known) if known else None)
    return pa.array(found, column.type)
