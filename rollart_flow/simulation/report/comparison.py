"""Compares schedules on scenarios: the runs of a comparison, and the figures of each.

The invariant: schedules are compared under equal conditions: the same attempts for the same seed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.errors import DeadlockError, RunFailedError
from rollart_flow.simulation.cluster.simulated_cluster import SimulatedCluster
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.report.bounds import batch_of, work_s
from rollart_flow.simulation.report.report import Report, report
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.virtual_time import run
from rollart_flow.simulation.workloads import Script


@dataclass(frozen=True, slots=True)
class Propositions:
    """Upper bounds of the time of a step (ROLL Flash section 3.1)."""

    sync_s: float
    """Synchronous training (Proposition 2.1) [s]."""
    async_s: float
    """Asynchronous training (Proposition 2.2), at the scenario's split of devices [s]."""
    best_share: float
    """beta*, the share of devices for training that minimizes `async_s` (equation 10)."""


def propositions(scripts: Sequence[Script], scenario: Scenario, schedule: Schedule) -> Propositions:
    """ROLL Flash's upper bounds for a batch of attempts like these.

    The proposition's workers take one sample each; here such a worker is one of the slots of an
    inference worker, whose number is the batch that the schedule has in flight there.
    """
    # The capacity in flight is (1 + alpha) batches.
    alpha = float(Fraction(schedule.bound.capacity(1000), 1000) - 1)
    roofline, count = scenario.workers()[0]
    n = scenario.batch_size
    slots = batch_of((1 + alpha) * n / count, roofline)
    times = [script.environment_s + work_s(script, roofline, slots) * slots for script in scripts]
    mean, longest = math.fsum(times) / len(times), max(times)
    devices = scenario.training.devices
    rollout_devices = sum(r.devices * c for r, c in scenario.workers())
    total = rollout_devices if scenario.shared else devices + rollout_devices
    training_s = scenario.cost.step_s([s.tokens for s in scripts[:n]], total, scenario.epochs)
    k = slots * total / roofline.devices
    beta = devices / total
    generation = n * mean + k * longest / (1 + alpha)
    train = training_s * k
    return Propositions(
        sync_s=n * mean / k + longest + training_s,
        async_s=max(generation / ((1 - beta) * k), train / (beta * k)) if beta < 1 else math.inf,
        best_share=train / (generation + train),
    )


DEFAULT_SCHEDULES = ("sync_plus", "one_off", "areal(1)", "rollart(1)")
"""Schedules of a comparison that names none."""

OnStart = Callable[["Case", Record], None]
"""Receives a case and its record before the run begins; the record grows with each step."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a comparison."""

    scenario: Scenario
    schedule: Schedule
    seed: int = 0
    steps: int = 5
    warmup: int | None = None
    """Number of first steps that are not measured; None: `warmup_of(schedule)`."""

    @property
    def title(self) -> str:
        """Scenario, schedule and seed in one line."""
        return f"{self.scenario.name}, {self.schedule.name}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one run."""

    report: Report
    propositions: Propositions


def cases(
    scenarios: Iterable[Scenario], schedules: Iterable[Schedule], seeds: Iterable[int], steps: int
) -> list[Case]:
    """Every combination; the schedules of one scenario and seed are consecutive."""
    every = product(scenarios, seeds, schedules)
    return [Case(scenario, schedule, seed, steps) for scenario, seed, schedule in every]


def simulate_case(case: Case, on_start: OnStart = lambda case, record: None) -> Record:
    """Run one case; the errors of `simulate` name the case."""

    async def main() -> Record:
        cluster = SimulatedCluster(case.scenario, case.schedule, seed=case.seed, steps=case.steps)
        on_start(case, cluster.record)
        return await cluster.run()

    try:
        return run(main(), seed=case.seed)
    except (DeadlockError, RunFailedError) as error:
        raise type(error)(f"{case.title}: {error}") from error


def measure(case: Case, record: Record) -> Row:
    """The figures of a run, and the upper bounds for its batches."""
    measured = report(record, case.scenario, case.schedule, case.seed, warmup=case.warmup)
    steps = sorted(record.batches)[-measured.steps :]
    trained = (t for step in steps for t in record.batches[step].trajectory_ids)
    scripts = [record.attempts[t].script for t in trained]
    return Row(measured, propositions(scripts, case.scenario, case.schedule))
