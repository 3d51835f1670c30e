"""Some of the papers' figures, simulated, each beside the published number.

`make paper` simulates all of them, which takes many minutes.
"""

import os

from tests.benchmarks.paper import published
from tests.benchmarks.paper.figures import Figure
from tests.benchmarks.paper.kept import run_figures
from tests.benchmarks.records import Record, record

CHOSEN = ("Figure 12", "ROLL Flash Figure 7", "ROLL Flash Figure 8")
"""Beginnings of the names of the figures that are simulated."""


def run() -> list[Record]:
    """Simulate the chosen figures."""
    wanted = [figure for figure in published.figures() if figure.name.startswith(CHOSEN)]
    runs = run_figures(wanted, jobs=os.cpu_count() or 1)
    return [_record(figure, figure.value(runs)) for figure in wanted]


def _record(figure: Figure, value: float) -> Record:
    beside = None
    if figure.published is not None:
        low, high = figure.published
        beside = f"published {low:.2f}" + ("" if low == high else f" to {high:.2f}")
        if not figure.agrees(value):
            beside += f"; {figure.why}"
    unit = "x" if figure.against is not None else ""
    return record(f"paper: {figure.name}", value, unit, peer=beside)
