"""A figure of a paper: two simulations and a measure, beside a published number.

The invariant: the value of a figure depends on its two cases and its measure, never on the
published number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.simulation.report.comparison import Case, Row, measure, simulate_case
from rollart_flow.simulation.scenario import Scenario
from tests.benchmarks.paper.details import Details, details_of

TOLERANCE = 0.15
"""Relative difference beyond which a figure explains why it differs."""
NO_CHANGE = 0.03
"""Distance from 1 within which a speedup is none: the tokens of five steps differ as much."""
ITERATIONS = 5
"""Steps that a step time is the mean of (ROLLART section 7.1)."""
EVEN = 0.0005
"""Distance from 1 within which no side of it is taken: such a ratio is printed as 1."""
OTHER_LENGTHS = (
    "the papers publish no lengths and latencies of their tasks; with those assumed here "
)
"""The beginning of several explanations."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The results of a simulated case."""

    row: Row
    rollout_s: float
    """Mean time from the request for a batch to the batch [s]."""
    details: Details


Measure = Callable[[Finished], float]


def step_s(run: Finished) -> float:
    """Mean step time [s]."""
    return run.row.report.step_s


def token_s(run: Finished) -> float:
    """Step time per token [s]: the inverse of the throughput, so that less is better."""
    return 1.0 / run.row.report.throughput


def rollout_s(run: Finished) -> float:
    """Mean time from the request for a batch to the batch [s]."""
    return run.rollout_s


def exposed_pull_s(run: Finished) -> float:
    """The part of a weight pull that no rollout hides [s]."""
    return run.row.report.exposed_pull_s


def over_bound(run: Finished) -> float:
    """Step time divided by its lower bound."""
    return run.row.report.step_s / run.row.report.bound.step_s


def wasted(run: Finished) -> float:
    """Share of the sampled tokens that no step trained on."""
    return run.row.report.wasted_fraction


def slow_represented(run: Finished) -> float:
    """Trained share of the slowest quarter of attempts, divided by the trained share of all."""
    return run.row.report.slow_represented


def reward_utilization(run: Finished) -> float:
    """Share of the paid device time in which the reward model worked."""
    return run.row.report.reward_utilization or 0.0


@dataclass(frozen=True)
class Figure:
    """One published number, and the measurement of ours."""

    name: str
    ours: Case
    against: Case | None
    """The slower case of a speedup; None if the measure itself was published."""
    published: tuple[float, float] | None
    """Published range, up to infinity if only the least was; None if nothing was published."""
    measure: Measure = step_s
    why: str = ""
    """Why our number may differ."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that have to be simulated."""
        return (self.ours,) if self.against is None else (self.ours, self.against)

    def seeded(self, seed: int) -> "Figure":
        """The same figure from simulations with another seed."""
        against = None if self.against is None else replace(self.against, seed=seed)
        return replace(self, ours=replace(self.ours, seed=seed), against=against)

    def value(self, runs: Mapping[Case, Finished]) -> float:
        """Our number: the speedup, or the measure itself."""
        ours = self.measure(runs[self.ours])
        if self.against is None:
            return ours
        return self.measure(runs[self.against]) / ours

    @property
    def span(self) -> tuple[float, float | None] | None:
        """The published range, without an end if only the least was published."""
        if self.published is None:
            return None
        low, high = self.published
        return low, high if math.isfinite(high) else None

    @property
    def printed(self) -> str:
        """The published range as text, empty if nothing was published."""
        if (span := self.span) is None:
            return ""
        low, high = span
        if high is None:
            return f"{low:.2f} or more"
        return f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"

    def nearest(self, value: float) -> float | None:
        """The published number that is nearest to ours."""
        if self.published is None:
            return None
        low, high = self.published
        return min(max(value, low), high)

    def agrees(self, value: float) -> bool:
        """Whether our number is within the tolerance of the published range.

        A slowdown never agrees with a speedup, nor a speedup with a slowdown.
        """
        nearest = self.nearest(value)
        if nearest is None:
            return True
        one_side = self.against is None or same_side(value, nearest)
        return one_side and abs(value / nearest - 1) <= TOLERANCE


def same_side(value: float, other: float) -> bool:
    """Whether two speedups are both slower or neither is, or both are no change."""
    unchanged = abs(value - 1) <= NO_CHANGE and abs(other - 1) <= NO_CHANGE
    return unchanged or (value < 1 - EVEN) == (other < 1 - EVEN)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of a figure over seeds, with an interval."""

    mean: float
    low: float
    high: float
    """The interval of 95% for the mean, by Student's distribution; the mean alone for one seed."""


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% quantile for 1, 2, ... degrees of freedom."""


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the values of one or more seeds, and its interval."""
    middle = mean(values)
    if len(values) == 1:
        return Estimate(middle, middle, middle)
    quantile = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(middle, middle - half, middle + half)


def in_turns(scenario: Scenario, schedule: Schedule, steps: int = ITERATIONS) -> Case:
    """A synchronous run that is measured for so many steps after its first one."""
    return Case(scenario, schedule, steps=1 + steps, warmup=1)


def settled(scenario: Scenario, schedule: Schedule, alpha: int = 1) -> Case:
    """A run that is measured for `ITERATIONS`, after its first 2 (1 + alpha) steps.

    Of the (1 + alpha) batches that a schedule begins at once it trains on the short trajectories
    first and on all long ones in a later step, so that steps are alike only after them.
    """
    first = 2 * (1 + alpha)
    return Case(scenario, schedule, steps=first + ITERATIONS, warmup=first)


def filled(scenario: Scenario, schedule: Schedule) -> Case:
    """A run that is measured for `ITERATIONS` after its first two steps: the first has no batch to
    train on beside its rollout."""
    return Case(scenario, schedule, steps=2 + ITERATIONS, warmup=2)


def finish(case: Case) -> Finished:
    """Simulate a case."""
    record = simulate_case(case)
    waits = [times.formed - times.asked for times in record.steps]
    return Finished(measure(case, record), sum(waits) / len(waits), details_of(record))
