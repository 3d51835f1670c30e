"""A fit of the parameters to absolute numbers of the papers, and what it predicts of the others.

Knobs of one family of tasks are fitted together to the numbers that depend on them, by the simplex
search of Nelder and Mead (1965) in logarithms, from the best of several points. Where a paper
reports the quotient of two times, both times are fitted or neither is: the quotient itself never
is, and is not counted as predicted where both are fitted. The invariant: the fitted values and the
observations they came from are in `fitted.json`, which `stored_fit` reads.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import fmean

from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.absolute import Observation, formulas, observations, predictions
from tests.benchmarks.paper.figures import Finished
from tests.benchmarks.paper.kept import simulate_cases
from tests.benchmarks.paper.parameters import KNOBS, STORED, VLLM_VERSION, fitted
from tests.benchmarks.paper.scenarios import Scenarios
from tests.benchmarks.paper.simplex import Point, descend

MOVES = 8
"""Moves of a simplex for each knob of a family."""
POINTS = 12
"""Points within the bounds of the knobs of a family that a search may begin at."""
SEED = 0
"""Seed of those points, and of all simulations of a fit."""


@dataclass(frozen=True, slots=True)
class Family:
    """Knobs that are fitted together, and the predictions that they are fitted to."""

    name: str
    knobs: tuple[str, ...]
    keys: tuple[str, ...]
    """Keys of observations; all of one figure are left out together in cross-validation."""
    figures: tuple[str, ...] = ()
    """Beginnings of the names of the figures that have no other numbers than these."""


FAMILIES = (
    Family(
        "links",
        ("rdma_s_per_gib", "rdma_start_s"),
        ("rdma 8B", "rdma 32B"),
        ("Table 3: transfer over RDMA [s], 8B", "Table 3: transfer over RDMA [s], 32B"),
    ),
    Family(
        "transfers",
        ("pull_s_per_gib", "several_pull", "copy_gib_s", "several_copy"),
        tuple(
            f"{what} {size}"
            for what in ("tcp", "pull", "exposed")
            for size in ("8B", "14B", "32B")
        ),
        ("Table 3: transfer over TCP", "Table 4"),
    ),
    Family(
        "software",
        (
            "swe_response", "swe_sigma", "swe_experts", "step_scale", "launch_s", "slow_launch_s",
            "training_share", "pass_s", "sequence_s", "several_s", "cached_share",
        ),
        (
            "software step", "software training share", "software environments",
            "software reset share", "software failures",
            *(
                f"nodes {prefill} {kind} {model}"
                for model in ("32B", "30B-A3B")
                for prefill in (1, 2)
                for kind in ("apart", "together")
            ),
        ),
        (
            "Figure 3: step",
            "Figure 3: training's share",
            "Figure 3: generation's share",
            "Figure 3: reset's share of a step",
            "Table 5",
        ),
    ),
    Family(
        "thoughts",
        ("thought_response", "thought_sigma", "thought_spread", "thought_agreement"),
        ("thought length", "filtered batch", "replicated 32x16", "replicated 32x16 together"),
        ("ROLL Flash Figure 8: prompt replication, 32x16",),
    ),
    Family(
        "mathematics",
        ("math_response", "math_sigma"),
        ("judged local", "judged serverless"),
        ("Figure 12: rollout time",),
    ),
    Family(
        "judge",
        ("verdict_tokens",),
        ("software judge", "judge's utilization local", "judge's utilization serverless"),
        ("Figure 6", "Figure 12: utilization"),
    ),
    Family(
        "waits",
        ("wait_turns", "wait_sigma"),
        ("redundant 32x8", "redundant 36x12"),
        ("ROLL Flash Figure 10: 36x12",),
    ),
)  # fmt: skip


GIVEN = (
    "Figure 3: reset's share of rollout with failures",
    "Figure 4a",
    "Figure 4b",
    "Figure 10a",
    "Figure 10b",
    "Figure 10c",
    "Figure 11a",
    "Figure 12",
    "Figure 14a",
    "Figure 15",
    "ROLL Flash Figure 1b",
    "ROLL Flash Figure 3a",
    "ROLL Flash Takeaway 3",
    "ROLL Flash Table 1",
    "ROLL Flash Figure 8",
    "ROLL Flash Figure 11 ALFWorld",
)
"""Beginnings of the names of figures that were in view when something was chosen for them, or was
replaced by what is published elsewhere: the batches of Figure 4, the lengths of GEM-game and the
time of a switch (Figures 10, 11a and 14a), the devices that train in Figure 10c, the engines'
memory (Figures 12 and 8 of ROLL Flash), batch, tasks and outages of Figure 15, what "256 rollouts"
are, the tolerance of Table 1, the lengths of ALFWorld, what two devices cost (Figures 10, 11a and
14a with 14B), and that steps with failures are no lockstep."""


def is_fitted(name: str) -> bool:
    """Whether all numbers of a figure are fitted, or were in view, so that it is no prediction."""
    return name.startswith(GIVEN + tuple(begin for each in FAMILIES for begin in each.figures))


class Oracle:
    """Predictions for values of the knobs; each case is simulated once, and kept in a folder."""

    def __init__(self, jobs: int, folder: Path | None = None) -> None:
        self._jobs = jobs
        self._folder = folder
        self._runs: dict[Case, Finished] = {}

    def predict(self, values: Mapping[str, float], keys: Sequence[str]) -> dict[str, float]:
        """The numbers of the keys."""
        given = Scenarios(fitted(values))
        known, simulated = formulas(given), predictions(given)
        wanted = {key: simulated[key] for key in keys if key not in known}
        cases = [case for p in wanted.values() for case in p.cases]
        new = [case for case in cases if case not in self._runs]
        self._runs |= simulate_cases(new, jobs=self._jobs, folder=self._folder)
        found = {key: p.value(self._runs) for key, p in wanted.items()}
        return {key: known[key] if key in known else found[key] for key in keys}


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

    chance = Random(f"{SEED}/{family.name}")
    points = [
        dict(start) | {name: KNOBS[name].at(chance.random()) for name in family.knobs}
        for _ in range(POINTS)
    ]
    return _descend(family.knobs, min((dict(start), *points), key=loss), loss)


def _descend(
    knobs: Sequence[str], first: Mapping[str, float], loss: Callable[[Mapping[str, float]], float]
) -> dict[str, float]:
    """The best values that a simplex search finds from the first ones."""

    def values_of(point: Point) -> dict[str, float]:
        pairs = zip(knobs, point, strict=True)
        return dict(first) | {name: KNOBS[name].at(share) for name, share in pairs}

    start = tuple(KNOBS[name].share(first[name]) for name in knobs)
    moves = MOVES * len(knobs)
    return values_of(descend(start, lambda point: loss(values_of(point)), moves))


def fit(oracle: Oracle, families: Sequence[Family] = FAMILIES) -> dict[str, float]:
    """The values of all knobs, each family fitted after the other, from those that are stored."""
    values: dict[str, float] = json.loads(STORED.read_text())["values"]
    for family in families:
        values = fit_family(family, values, oracle)
    return {name: float(f"{value:.4g}") for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A figure whose numbers a fit without them predicts."""

    numbers: Mapping[str, tuple[float, float]]
    """(prediction, observation) by key."""
    refitted: bool
    """Whether other figures determine the knobs; if not, they are where a search begins."""

    @property
    def error(self) -> float:
        """Mean factor by which predictions differ from observations, minus 1."""
        logs = [abs(math.log(max(ours, 1e-6) / theirs)) for ours, theirs in self.numbers.values()]
        return math.exp(fmean(logs)) - 1


def left_out(
    oracle: Oracle, values: Mapping[str, float], families: Sequence[Family] = FAMILIES
) -> dict[str, LeftOut]:
    """Each figure that has fitted numbers, left out as a whole from the fit of its family.

    Args:
        values: the fit to all figures, which gives the knobs of the other families.
    """
    seen = published()
    found: dict[str, LeftOut] = {}
    for family in families:
        start = dict(values) | {name: KNOBS[name].start for name in family.knobs}
        for place in dict.fromkeys(place_of(seen[key]) for key in family.keys):
            out = [key for key in family.keys if place_of(seen[key]) == place]
            others = [key for key in family.keys if key not in out]
            knobs = fit_family(family, start, oracle, others) if others else start
            predicted = oracle.predict(knobs, out)
            numbers = {key: (predicted[key], seen[key].value) for key in out}
            before = found.get(place, LeftOut({}, True))  # of another family with the same table
            refitted = before.refitted and bool(others)
            found[place] = LeftOut({**before.numbers, **numbers}, refitted)
    return found


def place_of(seen: Observation) -> str:
    """The figure, table or section of an observation, with its paper."""
    return f"{seen.paper} {seen.place}"


def store(values: Mapping[str, float], found: Mapping[str, LeftOut]) -> None:
    """Write a fit and its cross-validation, with what they came from, to `fitted.json`."""
    stored = {
        "values": values,
        "fitted_to": [key for family in FAMILIES for key in family.keys],
        "versions": {"rollart_flow": version("rollart-flow"), "vllm": VLLM_VERSION},
        "seed": SEED,
        "left_out": {
            place: {
                "error": round(out.error, 3),
                "refitted": out.refitted,
                "numbers": {
                    key: [float(f"{value:.4g}") for value in pair]
                    for key, pair in out.numbers.items()
                },
            }
            for place, out in found.items()
        },
    }
    STORED.write_text(json.dumps(stored, indent=2) + "\n")
