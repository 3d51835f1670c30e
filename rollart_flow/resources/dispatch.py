"""Modes: the arguments of one call become those of many workers, and many results become one.

The modes are those of the single-controller frameworks (ROLLART section 5.2; verl's dispatch
modes). A mode is a pair of pure functions. Invariant of "split": results are in the order of the
arguments, and no row is lost, repeated or padded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from rollart_flow.errors import SettingsError

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""(positional, keyword) arguments."""

Dispatch = Callable[[int, tuple[Any, ...], dict[str, Any]], Sequence[Call]]
"""(ranks, positional, keyword) -> calls of the ranks; ranks without a call are not called."""

Collect = Callable[[list[Any]], Any]
"""Results in the order of the ranks -> result of the call."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to call many workers as one."""

    dispatch: Dispatch
    collect: Collect
    by_rank: bool = True
    """Whether the mode counts data-parallel ranks: all workers of a rank run its call, and the
    first one's result is used. If False, every worker counts by itself."""


def _broadcast(ranks: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call]:
    return [(args, kwargs)] * ranks


def _first(ranks: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call]:
    return [(args, kwargs)]


def _only(results: list[Any]) -> Any:
    return results[0]


def split(ranks: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call]:
    """Cut every argument along its first axis into parts that differ by one row at most.

    Raises:
        SettingsError: an argument has no first axis, arguments differ in length, or there is less
            than one row for each rank.
    """
    rows = {length for value in (*args, *kwargs.values()) for length in _lengths(value)}
    if len(rows) != 1:
        raise SettingsError(
            f"arguments of a split call must have one length, but have {sorted(rows) or 'none'}"
        )
    (total,) = rows
    if total < ranks:
        raise SettingsError(
            f"{total} rows cannot be split over {ranks} data-parallel ranks; pass at least one each"
        )
    cuts = [total * rank // ranks for rank in range(ranks + 1)]
    return [
        (
            tuple(_part(value, start, end) for value in args),
            {name: _part(value, start, end) for name, value in kwargs.items()},
        )
        for start, end in pairwise(cuts)
    ]


def _lengths(value: Any) -> list[int]:
    if isinstance(value, Mapping):
        return [length for each in value.values() for length in _lengths(each)]
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise SettingsError(
            f"a split call cannot cut {type(value).__name__} {value!r}; pass lists, tables, arrays "
            "or tensors, and settings through another method"
        )
    return [len(value)]


def _part(value: Any, start: int, end: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _part(each, start, end) for name, each in value.items()}
    if isinstance(value, pa.Table | pa.RecordBatch):
        return value.slice(start, end - start)
    return value[start:end]


def join(results: list[Any]) -> Any:
    """Join the results of all ranks into one value of the same kind.

    Raises:
        SettingsError: values of this kind cannot be joined.
    """
    first = results[0]
    if first is None and all(result is None for result in results):
        return None
    if isinstance(first, Mapping):
        return {name: join([result[name] for result in results]) for name in first}
    if isinstance(first, pa.Table):
        return pa.concat_tables(results)
    if isinstance(first, pa.RecordBatch):
        return pa.concat_batches(results)
    if isinstance(first, list | tuple):
        joined = [item for result in results for item in result]
        return joined if isinstance(first, list) else tuple(joined)
    return _join_arrays(results)


def _join_arrays(results: list[Any]) -> Any:
    kind = type(results[0])
    library = kind.__module__.partition(".")[0]
    if library == "torch":
        import torch

        return torch.cat(results)
    if library == "numpy" and results[0].ndim:
        import numpy as np

        return np.concatenate(results)
    raise SettingsError(
        f"a split call cannot join results of type {kind.__name__}; return lists, tables, arrays, "
        "tensors or a mapping of these"
    )


MODES: Mapping[str, Mode] = {
    "execute_all": Mode(_broadcast, list, by_rank=False),
    "first_result": Mode(_broadcast, _only, by_rank=False),
    "rank_zero": Mode(_first, _only),
    "split": Mode(split, join),
}
"""Modes by name."""
