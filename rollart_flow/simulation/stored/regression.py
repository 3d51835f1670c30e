"""Least squares for times that were measured while training and rollout shared a machine.

Plain functions over arrays. The invariant: a fitted time never decreases with more work or with a
longer shared time.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STRETCHES = np.linspace(0.0, 4.0, 81)
"""The stretches that are searched."""


def open_intervals(
    starts: Floats, ends: Floats, *, most: float = np.inf
) -> Callable[[Floats], Floats]:
    """Integral over time of the number of open intervals, counted up to `most`.

    Returns:
        F such that F(b) - F(a) is the integral from a to b.
    """
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
    """Weights of 0 or more such that `columns @ weights` is close to `times`.

    Columns whose weight comes out negative are left out, the most negative first.

    Args:
        columns: [samples, columns].
        times: [samples].
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

    Args:
        columns: [samples, columns].
        times: [samples].
        shared: share of each sample's time in which the machine was shared, 0 to 1 [samples].

    Returns:
        The stretch is 0 if the samples do not determine it: if all were shared for most of their
        time, or all for little of it.
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
