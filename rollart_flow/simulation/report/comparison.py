"""Compares schedules on scenarios: the runs of a comparison, and the figures of each.

The invariant: schedules are compared under equal conditions: the same attempts for the same seed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.errors import DeadlockError, RunFailedError
from rollart_flow.simulation.cluster.simulated_cluster import SimulatedCluster
from rollart_flow.simulation.loop.virtual_time import run
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.report.propositions import Propositions, propositions
from rollart_flow.simulation.report.report import Report, report
from rollart_flow.simulation.scenario import Scenario

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
    scenarios: Iterable[Scenario],
    schedules: Iterable[Schedule],
    seeds: Iterable[int],
    steps: int,
) -> Iterator[Case]:
    """Every combination; the schedules of one scenario and seed are consecutive."""
    schedules, seeds = list(schedules), list(seeds)
    for scenario in scenarios:
        for seed in seeds:
            for schedule in schedules:
                yield Case(scenario, schedule, seed, steps)


def simulate_case(case: Case, on_start: OnStart = lambda case, record: None) -> Record:
    """Run one case.

    Raises:
        DeadlockError: everything waits; the message names the case and the waits.
        RunFailedError: the run cannot continue; the message names the case.
    """

    async def main() -> Record:
        cluster = SimulatedCluster(case.scenario, case.schedule, seed=case.seed, steps=case.steps)
        on_start(case, cluster.record)
        return await cluster.run()

    try:
        return run(main(), seed=case.seed)
    except (DeadlockError, RunFailedError) as error:
        raise type(error)(f"{case.title}: {error}") from error


def measure(case: Case, record: Record) -> Row:
    """The figures of a run, and the upper bounds for what it trained on."""
    measured = report(record, case.scenario, case.schedule, case.seed, warmup=case.warmup)
    steps = sorted(record.batches)[-measured.steps :]
    scripts = [
        record.attempts[t].script for step in steps for t in record.batches[step].trajectory_ids
    ]
    return Row(measured, propositions(scripts, case.scenario, case.schedule))
