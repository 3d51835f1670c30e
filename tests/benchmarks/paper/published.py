"""The figures of ROLLART and ROLL Flash: their cases, published numbers, and why ours may differ.

The invariant: a figure is defined completely in the modules of its paper, independent of any
result.
"""

from tests.benchmarks.paper import beyond
from tests.benchmarks.paper.figures import Figure
from tests.benchmarks.paper.flash import agentic, rlvr
from tests.benchmarks.paper.parameters import ASSUMED, Parameters
from tests.benchmarks.paper.rollart import (
    ablations,
    characterization,
    cross_cutting,
    end_to_end,
    production,
)
from tests.benchmarks.paper.scenarios import Scenarios


def figures(parameters: Parameters = ASSUMED) -> tuple[Figure, ...]:
    """All figures under some parameters, in the order of the papers."""
    given = Scenarios(parameters)
    return (
        *characterization.figures(given),
        *end_to_end.figures(given),
        *ablations.figures(given),
        *cross_cutting.figures(given),
        *production.figures(given),
        *rlvr.figures(given),
        *agentic.figures(given),
        *beyond.figures(given),
    )


LEFT_OUT = {
    "Figure 5": "distributions of env.reset and env.step stand in the plot alone",
    "Figure 10a, curves": "scores over time stand in the plot alone",
    "Figure 10b, bars": "throughput of each schedule and size stands in the plot alone",
    "Figure 10c, One-off and AReaL": "said to scale little, without a number",
    "Figure 15c": "1.66 times by another ratio of devices and tuned caches, neither of which is "
    "published",
    "ROLL Flash Figure 1b, other counts": "stand in the plot alone",
    "ROLL Flash Figure 3b": "step times stand in the plot alone",
    "ROLL Flash Figure 4": "scores of learning algorithms, which a simulation of time has not",
    "ROLL Flash Figure 7, other sizes": "stand in the plot alone",
    "ROLL Flash Figure 8, other sizes": "stand in the plot alone",
    "ROLL Flash Figure 9": "speedups stand in the plot alone",
    "ROLL Flash Figure 10, other cells": "stand in the plot alone",
}
"""What the papers show and the text does not print, or a simulation does not have, and why."""
