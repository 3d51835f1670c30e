"""Several schedules on several scenarios: which runs that takes, and the figures of each.

The invariant: schedules are compared under equal conditions: the same attempts for the same seed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rollart_flow.control.schedule.schedules import Schedule
from rollart_flow.errors import DeadlockError, RunFailedError
from rollart_flow.simulation.cluster.simulated_cluster import SimulatedCluster
from rollart_flow.simulation.loop.virtual_time import run
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.report.bounds import Propositions, propositions
from rollart_flow.simulation.report.report import Report, report
from rollart_flow.simulation.scenario import Scenario

DEFAULT_SCHEDULES = ("sync_plus", "one_off", "areal(1)", "rollart(1)")
"""What is compared where nobody says which."""

OnStart = Callable[["Case", Record], None]
"""Is given a run's record before it begins, which grows with each step."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    scenario: Scenario
    schedule: Schedule
    seed: int = 0
    steps: int = 5
    warmup: int | None = None
    """First steps that are not measured; None: those of the schedule."""

    @property
    def title(self) -> str:
        """In words."""
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
    """Every combination; the schedules for one scenario and seed follow one another."""
    schedules, seeds = list(schedules), list(seeds)
    for scenario in scenarios:
        for seed in seeds:
            for schedule in schedules:
                yield Case(scenario, schedule, seed, steps)


def simulate_case(case: Case, on_start: OnStart = lambda case, record: None) -> Record:
    """Run one case.

    Raises:
        DeadlockError, RunFailedError: as `simulate`; the message names the case.
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
