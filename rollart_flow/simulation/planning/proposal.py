"""A proposal: an allocation with what simulations predict for it, and what binds it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart_flow.simulation.planning.allocation import Allocation
from rollart_flow.simulation.planning.splits import asynchrony
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.report.bounds import chain_s, rollout_s
from rollart_flow.simulation.report.report import Report
from rollart_flow.simulation.scenario import Scenario

_HOUR = 3600.0
CLOSE = 0.03
"""Share of the step time by which a dearer or staler proposal has to be faster to be chosen."""

PREDICTION_ERROR = 0.2
"""Error within which 9 of 10 predictions of one setting from a run under another one stayed, in
`tests/benchmarks/bench_predict.py`: 104 of 108 predictions between 18 runs."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One simulation of an allocation."""

    scenario: Scenario
    report: Report
    record: Record


@dataclass(frozen=True, slots=True)
class Proposal:
    """An allocation and its predicted figures over all seeds."""

    allocation: Allocation
    step_s: float
    """Mean over the seeds."""
    low_s: float
    high_s: float
    """Shortest and longest step time of a seed; if engines and trainer are those of a run, with
    `PREDICTION_ERROR` on either side."""
    throughput: float
    """Tokens of a batch per second of step time."""
    hour: float | None
    """Price of the occupied devices for an hour; None if a class has no price."""
    loads: Mapping[str, float]
    """Least time of a step for each stage alone [s]."""
    serial: bool
    """Whether rollout and training wait for each other."""

    @property
    def step(self) -> float | None:
        """Price of one step."""
        return None if self.hour is None else self.hour * self.step_s / _HOUR

    @property
    def binds(self) -> str:
        """The stage that takes longest by itself."""
        return max(self.loads, key=self.loads.__getitem__)


def proposal_of(
    allocation: Allocation, sampled: Sequence[Sampled], prices: Mapping[str, float]
) -> Proposal:
    """Summarize the simulations of an allocation."""
    times = [each.report.step_s for each in sampled]
    error = 0.0 if sampled[0].scenario.measured is None else PREDICTION_ERROR
    used = allocation.devices
    priced = all(name in prices for name in used)
    return Proposal(
        allocation=allocation,
        step_s=math.fsum(times) / len(times),
        low_s=min(times) / (1 + error),
        high_s=max(times) / (1 - error),
        throughput=math.fsum(each.report.throughput for each in sampled) / len(sampled),
        hour=math.fsum(prices[name] * n for name, n in used.items()) if priced else None,
        loads=_loads(allocation, sampled[0]),
        serial=sampled[0].report.bound.serial,
    )


def _loads(allocation: Allocation, sampled: Sampled) -> dict[str, float]:
    """Times of a step by stage, each as if nothing else took any time [s]."""
    scenario, report, record = sampled.scenario, sampled.report, sampled.record
    steps = sorted(record.batches)[-report.steps :]
    trained = [record.attempts[t] for step in steps for t in record.batches[step].trajectory_ids]
    slots = scenario.slots(allocation.schedule)
    # The report's bound leaves out what the warm-up may have done, which is all of a short run.
    longest = max(chain_s(attempt.script, scenario) for attempt in trained)
    whole = [(attempt.script, 1.0) for attempt in trained]
    environments = math.fsum(attempt.script.environment_s for attempt in trained)
    score_s = scenario.score_s if scenario.measured is None else scenario.measured.scored_s
    return {
        "generation": rollout_s(whole, scenario, slots) / len(steps),
        "longest attempt": longest / (1 + asynchrony(allocation.schedule)),
        "environments": environments / slots / len(steps),
        "reward": score_s * len(trained) / slots / len(steps),
        "training": report.bound.training_s,
        "weights": report.bound.push_s + report.exposed_pull_s,
    }


def preferred(proposals: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """The chosen proposal first, then the others by step time.

    Of those whose steps are nearly as short as the shortest, the cheapest is chosen, and of those
    the one with the least staleness and redundancy, whose cost for learning no simulation shows.
    """
    ranked = sorted(proposals, key=lambda one: one.step_s)
    near = [one for one in ranked if one.step_s <= (1 + CLOSE) * ranked[0].step_s]
    chosen = min(near, key=_rank)
    return (chosen, *(one for one in ranked if one is not chosen))


def _rank(one: Proposal) -> tuple[float, float, int, float]:
    devices = float(sum(one.allocation.devices.values()))
    price = devices if one.hour is None else one.hour
    return price, asynchrony(one.allocation.schedule), one.allocation.redundancy, one.step_s
