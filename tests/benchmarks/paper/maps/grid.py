"""The cells of a map: the gain of a mechanism at each point of a grid, and where it is large.

The invariant: a cell is a `Figure`, and the cell at the paper's point has the figure's cases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import TOLERANCE, Figure, Finished, same_side
from tests.benchmarks.paper.maps.mechanisms import BATCHES, LENGTHS, VARIANCES, Mechanism
from tests.benchmarks.paper.maps.varying import varied
from tests.benchmarks.paper.scenarios import Scenarios


@dataclass(frozen=True, slots=True)
class Place:
    """A point of the grid."""

    lengths: float
    """Factor of the lengths of responses."""
    variance: float
    """Factor of the spread of lengths and of the times of environments."""
    hardware: int
    """What `Mechanism.hardware_is` says."""
    batch: float
    """Factor of the batch."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The gain at a place."""

    place: Place
    gain: float


def grid(mechanism: Mechanism, given: Scenarios, size: int) -> dict[Place, Figure]:
    """The comparisons of a map of at most `size` values for each axis; the paper's is first."""
    axes = LENGTHS[:size], VARIANCES[:size], mechanism.hardware[:size], BATCHES[:size]
    at = {value: mechanism.compare(given, value) for value in axes[2]}
    return {
        (place := Place(*values)): varied(
            at[place.hardware],
            lengths=place.lengths,
            variance=place.variance,
            batch=place.batch,
        )
        for values in product(*axes)
    }


def cells(figures: Mapping[Place, Figure], runs: Mapping[Case, Finished]) -> list[Cell]:
    """The gains, in the order of the grid."""
    return [Cell(place, figure.value(runs)) for place, figure in figures.items()]


def reaches(cell: Cell, published: tuple[float, float]) -> bool:
    """Whether the gain is the published one by the rule of the figures: within 15% of its range,
    and no slowdown in place of a speedup."""
    low, high = published
    nearest = min(max(cell.gain, low), high)
    return same_side(cell.gain, nearest) and abs(cell.gain / nearest - 1) <= TOLERANCE


def condition(found: Sequence[Cell], published: tuple[float, float]) -> str:
    """Where the published gain appears, in one line that follows from the cells."""
    here, best = found[0], max(found, key=lambda cell: cell.gain)
    reached = [cell for cell in found if reaches(cell, published)]
    span = f"{published[0]:.2f}" + (f"-{published[1]:.2f}" if published[1] > published[0] else "")
    if not reached:
        return (
            f"the published gain of {span} appears in none of {len(found)} cells, whose gains go "
            f"from {min(cell.gain for cell in found):.2f} to {best.gain:.2f}, "
            f"the largest at {_said(best.place, here.place)}"
        )
    nearest = min(reached, key=lambda cell: (_changes(cell.place, here.place), -cell.gain))
    needed = [
        f"{axis} {' or '.join(f'{value:g}' for value in sorted(values))}"
        for axis in asdict(here.place)
        if (values := {asdict(c.place)[axis] for c in reached})
        != {asdict(c.place)[axis] for c in found}
    ]
    return (
        f"the published gain of {span} appears in {len(reached)} of {len(found)} cells"
        + (f", only with {', '.join(needed)}" if needed else ", at some cell of every value")
        + f"; the nearest is {nearest.gain:.2f}, at {_said(nearest.place, here.place)}"
    )


def _changes(place: Place, here: Place) -> int:
    """Number of axes along which a place differs from the paper's."""
    other = asdict(here)
    return sum(value != other[axis] for axis, value in asdict(place).items())


def _said(place: Place, here: Place) -> str:
    other = asdict(here)
    changed = [f"{axis} {value:g}" for axis, value in asdict(place).items() if value != other[axis]]
    return ", ".join(changed) or "the paper's point"
