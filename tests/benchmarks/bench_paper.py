"""The papers' figures, simulated, each beside the published number, and figures beyond them."""

import os

from tests.benchmarks.paper import figures, published
from tests.benchmarks.paper.figures import Figure, Measure
from tests.benchmarks.records import Record, record

OVER_BOUND, WASTED, SLOW = 1.1, 0.05, 0.95
"""Goals of `rollart_plus`: its step divided by the lower bound, the share of wasted tokens, and the
trained share of the slowest quarter divided by that of all."""


def run() -> list[Record]:
    """Simulate all figures."""
    wanted = published.figures()
    runs = figures.run_figures(wanted, jobs=os.cpu_count() or 1, on_case=lambda done, total: None)
    return [_record(figure, figure.value(runs)) for figure in wanted]


def _record(figure: Figure, value: float) -> Record:
    beside = None
    if figure.published is not None:
        low, high = figure.published
        beside = f"published {low:.2f}" + ("" if low == high else f" to {high:.2f}")
        if not figure.agrees(value):
            beside += f"; {figure.why}"
    goals: dict[Measure, dict[str, float]] = {
        figures.over_bound: {"at_most": OVER_BOUND},
        figures.wasted: {"at_most": WASTED},
        figures.slow_represented: {"at_least": SLOW},
    }
    wanted = goals.get(figure.measure, {}) if "rollart_plus" in figure.name else {}
    unit = "x" if figure.against is not None else ""
    return record(f"paper: {figure.name}", value, unit, peer=beside, **wanted)
