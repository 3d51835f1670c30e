"""A fit of the parameters to absolute numbers of the papers, and what it predicts of the others.

Knobs of one family of tasks are fitted together to the numbers that depend on them, by a search
along the coordinates in logarithms, from the best point of a coarse grid. Where a
paper reports the quotient of two times, both times are fitted or neither is: the quotient itself
never is, and is not counted as predicted where both are fitted. The invariant: the fitted values
and the observations they came from are in `fitted.json`, which `stored_fit` reads.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context

from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.absolute import Observation, formulas, observations, predictions
from tests.benchmarks.paper.figures import Finished, finish
from tests.benchmarks.paper.parameters import KNOBS, STORED, fitted
from tests.benchmarks.paper.scenarios import Scenarios

ROUNDS = 3
"""Passes over the knobs of a family; each halves the steps of the one before."""


@dataclass(frozen=True, slots=True)
class Family:
    """Knobs that are fitted together, and the predictions that they are fitted to."""

    name: str
    knobs: tuple[str, ...]
    keys: tuple[str, ...]
    """Keys of observations; each is left out once in cross-validation."""
    figures: tuple[str, ...] = ()
    """Beginnings of the names of the figures that have no other numbers than these."""


FAMILIES = (
    Family(
        "transfers", ("copy_gib_s",), ("exposed 14B",), ("Table 4: exposed weight pull [s], 14B",)
    ),
    Family(
        "mathematics",
        ("math_response", "sequences"),
        ("judged local", "judged serverless"),
        ("Figure 12: rollout time",),
    ),
    Family(
        "thoughts", ("thought_response", "thought_sigma"), ("filtered batch", "replicated 32x16")
    ),
    Family(
        "waits",
        ("wait_turns", "wait_sigma"),
        ("redundant 32x8", "redundant 36x12"),
        ("ROLL Flash Figure 10: 36x12",),
    ),
    Family(
        "software",
        ("swe_response", "step_scale", "switch_s"),
        ("software step", "software training share", "software environments"),
        ("Figure 3: step [s]", "Figure 3: training's share", "Figure 3: generation's share"),
    ),
)


def is_fitted(name: str) -> bool:
    """Whether all numbers of a figure are fitted, so that it is no prediction."""
    return any(name.startswith(family.figures) for family in FAMILIES if family.figures)


class Oracle:
    """Predictions for values of the knobs; each case is simulated once."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._runs: dict[Case, Finished] = {}

    def predict(self, values: Mapping[str, float], keys: Sequence[str]) -> dict[str, float]:
        """The numbers of the keys."""
        given = Scenarios(fitted(values))
        known, simulated = formulas(given), predictions(given)
        wanted = {key: simulated[key] for key in keys if key not in known}
        cases = [case for p in wanted.values() for case in p.cases]
        self._simulate([case for case in cases if case not in self._runs])
        found = {key: p.value(self._runs) for key, p in wanted.items()}
        return {key: known[key] if key in known else found[key] for key in keys}

    def _simulate(self, cases: Sequence[Case]) -> None:
        cases = list(dict.fromkeys(cases))
        if self._jobs == 1 or len(cases) < 2:
            self._runs |= {case: finish(case) for case in cases}
            return
        with ProcessPoolExecutor(self._jobs, mp_context=get_context("spawn")) as processes:
            self._runs |= dict(zip(cases, processes.map(finish, cases), strict=True))


def published() -> dict[str, Observation]:
    """The observations that something predicts, by its key."""
    return {seen.predicted_by: seen for seen in observations() if seen.predicted_by is not None}


def error(predicted: Mapping[str, float], seen: Mapping[str, Observation]) -> float:
    """Sum of the squared logarithms of prediction over observation."""
    return math.fsum(
        math.log(max(value, 1e-6) / seen[key].value) ** 2 for key, value in predicted.items()
    )


def fit_family(
    family: Family, start: Mapping[str, float], oracle: Oracle, keys: Sequence[str] | None = None
) -> dict[str, float]:
    """The values of all knobs after those of a family were fitted to its observations."""
    seen, chosen = published(), family.keys if keys is None else keys

    def loss(values: Mapping[str, float]) -> float:
        return error(oracle.predict(values, chosen), seen)

    axes = [(start[name], *KNOBS[name].grid()) for name in family.knobs]
    points = [dict(start) | dict(zip(family.knobs, point, strict=True)) for point in product(*axes)]
    firsts = dict(start), min(points, key=loss)
    return min((_descend(family.knobs, first, loss) for first in firsts), key=loss)


def _descend(
    knobs: Sequence[str], first: Mapping[str, float], loss: Callable[[Mapping[str, float]], float]
) -> dict[str, float]:
    """The values that a search along the coordinates ends at, from the first ones."""
    best, least = dict(first), loss(first)
    for round_ in range(ROUNDS):
        for name, direction in product(knobs, (1.0, -1.0)):
            knob = KNOBS[name]
            factor = (knob.high / knob.low) ** (direction / 8 / 2**round_)
            while True:
                value = min(knob.high, max(knob.low, best[name] * factor))
                tried = best | {name: value}
                if value == best[name] or (found := loss(tried)) >= least:
                    break
                best, least = tried, found
    return best


def fit(oracle: Oracle, families: Sequence[Family] = FAMILIES) -> dict[str, float]:
    """The values of all knobs, each family fitted after the other; stores them."""
    values = {name: knob.start for name, knob in KNOBS.items()}
    for family in families:
        values = fit_family(family, values, oracle)
    stored = {
        "values": {name: float(f"{value:.4g}") for name, value in values.items()},
        "fitted_to": [key for family in families for key in family.keys],
    }
    STORED.write_text(json.dumps(stored, indent=2) + "\n")
    return values


def left_out(oracle: Oracle, family: Family) -> dict[str, tuple[float, float]]:
    """(prediction, observation) of each number of a family when the family is fitted without it."""
    seen, start = published(), {name: knob.start for name, knob in KNOBS.items()}
    found: dict[str, tuple[float, float]] = {}
    for key in family.keys:
        others = [other for other in family.keys if other != key]
        values = fit_family(family, start, oracle, others) if others else start
        found[key] = oracle.predict(values, [key])[key], seen[key].value
    return found
