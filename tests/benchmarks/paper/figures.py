"""What a figure of a paper is here: two simulations and a measure, beside a published number.

The invariant: a figure is two cases and one measure; the published number takes no part in it.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from rollart_flow.simulation.report.comparison import Case, Row, measure, simulate_case

TOLERANCE = 0.15
"""Beyond it a figure says why."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What is kept of a simulated case."""

    row: Row
    rollout_s: float
    """Mean time from asking for a batch to having it [s]."""


Measure = Callable[[Finished], float]


def step_s(run: Finished) -> float:
    """Mean step time [s]."""
    return run.row.report.step_s


def token_s(run: Finished) -> float:
    """Step time for each token [s]: the inverse of the throughput, so that less is better."""
    return 1.0 / run.row.report.throughput


def rollout_s(run: Finished) -> float:
    """Mean time from asking for a batch to having it [s]."""
    return run.rollout_s


def exposed_pull_s(run: Finished) -> float:
    """Seconds of a weight pull that no rollout hides."""
    return run.row.report.exposed_pull_s


def over_bound(run: Finished) -> float:
    """Step time over what no schedule can beat."""
    return run.row.report.step_s / run.row.report.bound.step_s


def wasted(run: Finished) -> float:
    """Share of the generated tokens that nothing was trained on."""
    return run.row.report.wasted_fraction


def slow_represented(run: Finished) -> float:
    """Share of the slowest quarter that was trained on, over that of all."""
    return run.row.report.slow_represented


def reward_utilization(run: Finished) -> float:
    """Share of the paid device time in which the judge worked."""
    return run.row.report.reward_utilization or 0.0


@dataclass(frozen=True)
class Figure:
    """One published number and how ours is measured."""

    name: str
    ours: Case
    against: Case | None
    """The slower one of a speedup; None where the measure itself was published."""
    published: tuple[float, float] | None
    """Range; None where nothing was."""
    measure: Measure = step_s
    why: str = ""
    """Why ours may differ."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """What has to be simulated."""
        return (self.ours,) if self.against is None else (self.ours, self.against)

    def seeded(self, seed: int) -> "Figure":
        """The same figure from simulations with another seed."""
        against = None if self.against is None else replace(self.against, seed=seed)
        return replace(self, ours=replace(self.ours, seed=seed), against=against)

    def value(self, runs: Mapping[Case, Finished]) -> float:
        """Our number: how many times faster, or the measure itself."""
        ours = self.measure(runs[self.ours])
        if self.against is None:
            return ours
        return self.measure(runs[self.against]) / ours

    def nearest(self, value: float) -> float | None:
        """The published number that is nearest to ours."""
        if self.published is None:
            return None
        low, high = self.published
        return min(max(value, low), high)

    def agrees(self, value: float) -> bool:
        """Whether ours is within the tolerance of what was published."""
        nearest = self.nearest(value)
        return nearest is None or abs(value / nearest - 1) <= TOLERANCE


def run_figures(
    wanted: Sequence[Figure], *, jobs: int, on_case: Callable[[int, int], None]
) -> dict[Case, Finished]:
    """Simulate all cases of figures, each once, in so many processes.

    Args:
        on_case: told (cases done, cases in all).
    """
    cases = list(dict.fromkeys(case for figure in wanted for case in figure.cases))
    done: dict[Case, Finished] = {}
    on_case(0, len(cases))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        running = {processes.submit(_finish, case): case for case in cases}
        try:
            for future in as_completed(running):
                done[running[future]] = future.result()
                on_case(len(done), len(cases))
        finally:
            processes.shutdown(wait=False, cancel_futures=True)
    return done


def _finish(case: Case) -> Finished:
    record = simulate_case(case)
    waits = [times.formed - times.asked for times in record.steps]
    return Finished(measure(case, record), sum(waits) / len(waits))
