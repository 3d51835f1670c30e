"""The simplex search of Nelder and Mead (1965), within the unit cube.

The invariant: the point that is returned is no worse than the first one.
"""

from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean

Point = tuple[float, ...]
"""Coordinates from 0 to 1."""
EDGE = 0.12
"""Distance of the other corners of the first simplex from the first point."""


def descend(first: Point, loss: Callable[[Point], float], moves: int) -> Point:
    """The best point that a search finds, which computes the loss of each point once.

    After half of the moves it begins anew at the best point: a simplex that has met a side of the
    cube may lie in it wholly.
    """
    at = cache(loss)
    best = first
    for begun in range(2):
        simplex = _around(best)
        for _ in range((moves + begun) // 2):
            simplex = _moved(sorted(simplex, key=at), at)
        best = min(simplex, key=at)
    return best


def _around(point: Point) -> list[Point]:
    """The simplex of a point and of one beside it along each axis."""
    corners = [point]
    for index, x in enumerate(point):
        moved = x + EDGE if x + EDGE <= 1 else x - EDGE
        corners.append((*point[:index], moved, *point[index + 1 :]))
    return corners


def _moved(simplex: Sequence[Point], at: Callable[[Point], float]) -> list[Point]:
    """A simplex, the best point first, with its worst one moved, or all others towards the best."""
    *better, worst = simplex
    middle = [fmean(xs) for xs in zip(*better, strict=True)]

    def away(factor: float) -> Point:
        pairs = zip(middle, worst, strict=True)
        return tuple(min(1.0, max(0.0, m + factor * (m - w))) for m, w in pairs)

    reflected = away(1.0)
    if at(reflected) < at(better[0]):
        return [*better, min(reflected, away(2.0), key=at)]
    if at(reflected) < at(better[-1]):
        return [*better, reflected]
    contracted = away(0.5 if at(reflected) < at(worst) else -0.5)
    if at(contracted) < min(at(reflected), at(worst)):
        return [*better, contracted]
    best, *others = simplex
    return [best, *(_between(best, other) for other in others)]


def _between(one: Point, other: Point) -> Point:
    return tuple((x + y) / 2 for x, y in zip(one, other, strict=True))
