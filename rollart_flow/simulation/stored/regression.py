"""Least squares for times that were measured while others shared the machine.

The invariant: weights and slowdowns are never negative, and none is made up where the samples do
not determine it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollart_flow.simulation.stored.tables import Floats

_STRETCHES = np.linspace(0.0, 4.0, 81)
"""The stretches that are searched."""


def open_intervals(
    starts: Floats, ends: Floats, *, most: float = np.inf
) -> Callable[[Floats], Floats]:
    """F such that F(b) - F(a) integrates, from a to b, the open intervals, at most `most`."""
    moments = np.sort(np.concatenate((starts, ends)))
    if not len(moments):
        return np.zeros_like
    opened = np.searchsorted(np.sort(starts), moments, side="right")
    closed = np.searchsorted(np.sort(ends), moments, side="right")
    count = np.minimum(opened - closed, most)[:-1]
    area = np.concatenate(([0.0], np.cumsum(count * np.diff(moments))))
    return lambda at: np.interp(at, moments, area)


def outside(starts: Floats, ends: Floats, excluded: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The parts of the union of intervals that lie outside the union of the excluded ones."""
    moments = np.unique(np.concatenate((starts, ends, *excluded)))
    inside = _open_after(moments, starts, ends) & ~_open_after(moments, *excluded)
    return moments[:-1][inside[:-1]], moments[1:][inside[:-1]]


def _open_after(moments: Floats, starts: Floats, ends: Floats) -> npt.NDArray[np.bool_]:
    """Whether any interval is open just after each moment."""
    opened = np.searchsorted(np.sort(starts), moments, side="right")
    return np.asarray(opened > np.searchsorted(np.sort(ends), moments, side="right"))


def nonnegative(columns: Floats, times: Floats) -> Floats:
    """Weights of 0 or more such that `columns @ weights` is close to `times` [samples].

    Columns [samples, columns] whose weight comes out negative are left out, the most negative
    first.
    """
    fitted = list(range(columns.shape[1]))
    weights = np.zeros(columns.shape[1])
    while fitted:
        found = np.linalg.lstsq(columns[:, fitted], times, rcond=None)[0]
        if (found >= 0).all():
            weights[fitted] = found
            break
        del fitted[int(np.argmin(found))]
    return weights


def stretched(columns: Floats, times: Floats, shared: Floats) -> tuple[Floats, float]:
    """Weights and stretch such that `columns @ weights * (1 + stretch * shared)` is close to times.

    `columns` are [samples, columns]; `shared` is the share of each sample's time in which the
    machine was shared, 0 to 1. The stretch is 0 if the samples do not determine it: if all were
    shared for most of their time, or all for little of it.
    """
    if not (shared.min() < 0.5 < shared.max()):
        return nonnegative(columns, times), 0.0
    best: tuple[float, Floats, float] | None = None
    for stretch in _STRETCHES:
        scaled = columns * (1 + stretch * shared)[:, None]
        weights = nonnegative(scaled, times)
        error = float(((scaled @ weights - times) ** 2).sum())
        if best is None or error < best[0]:
            best = error, weights, float(stretch)
    assert best is not None
    return best[1], best[2]


def stretch_of_waits(computed: Floats, took: Floats, shared: Floats) -> float:
    """Stretch such that `computed * (1 + stretch * shared)` is close to `took`, 0 or more.

    Args:
        computed: CPU time of each sample's thread [s].
        took: its time [s].
        shared: share of that time in which others computed too, 0 to 1 and not 0 in all samples.
    """
    beside = computed * shared
    return max(0.0, float((beside * (took - computed)).sum() / (beside**2).sum()))


_LEAST_SHARED = 0.1
"""Least mean share of a computation's time that others worked, for it to measure its slowdown."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer a computation takes on CPUs while others work beside it."""

    growth: float
    """Additional CPU time of the same computation, as a share of it: caches are shared, and the
    interpreter is handed over."""
    waits: float
    """Additional time in which the thread waits for a core or the interpreter, as a share of its
    CPU time."""

    @property
    def stretch(self) -> float:
        return (1 + self.growth) * (1 + self.waits) - 1


def slowed(
    columns: Floats, computed: Floats, took: Floats, shared: Floats
) -> tuple[Floats, Slowdown | None]:
    """Weights of the CPU time of a computation by itself, and what others add to it.

    The slowdown is None if others hardly ever worked beside it.

    Args:
        columns: what the CPU time is proportional to [samples, columns].
        computed: CPU time of each sample's thread [s].
        took: its time [s].
        shared: share of that time in which others worked, 0 to 1.
    """
    weights, growth = stretched(columns, computed, shared)
    if shared.mean() < _LEAST_SHARED:
        return weights, None
    return weights, Slowdown(growth, stretch_of_waits(computed, took, shared))
