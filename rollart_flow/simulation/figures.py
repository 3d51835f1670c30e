"""The papers' figures: which two simulations make a ratio, what was published, and why we differ.

The invariant: a figure is two cases and one measure; the published number takes no part in it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rollart_flow.control.schedules import (
    Phase,
    Schedule,
    areal,
    one_off,
    rollart,
    rollart_plus,
    sync,
    sync_plus,
)
from rollart_flow.simulation import paper
from rollart_flow.simulation.cluster import simulate
from rollart_flow.simulation.hardware import QWEN3_8B, QWEN3_14B, QWEN3_32B
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.report import Report, report
from rollart_flow.simulation.scenario import Scenario

TOLERANCE = 0.15
"""Beyond it a figure says why."""


@dataclass(frozen=True)
class Case:
    """One simulation."""

    scenario: Scenario
    schedule: Schedule
    steps: int = 4

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it the same as another one."""
        return self.scenario.name, self.schedule.name, self.steps


@dataclass(frozen=True)
class Simulated:
    """A case that was run."""

    record: Record
    report: Report


Measure = Callable[[Simulated], float]


def step_s(run: Simulated) -> float:
    """Mean step time [s]."""
    return run.report.step_s


def step_rate(run: Simulated) -> float:
    """Tokens per second and step time, upside down, so that less is better like a time."""
    return 1.0 / run.report.throughput


def rollout_s(run: Simulated) -> float:
    """Mean time from asking for a batch to having it [s]."""
    steps = run.record.steps
    return sum(times.formed - times.asked for times in steps) / len(steps)


def exposed_pull_s(run: Simulated) -> float:
    """Seconds of a weight pull that no rollout hides."""
    return run.report.exposed_pull_s


def reward_utilization(run: Simulated) -> float:
    """Share of the paid device time in which the judge worked."""
    return run.report.reward_utilization or 0.0


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

    def value(self, runs: dict[tuple[str, str, int], Simulated]) -> float:
        """Our number: how many times faster, or the measure itself."""
        ours = self.measure(runs[self.ours.key])
        if self.against is None:
            return ours
        return self.measure(runs[self.against.key]) / ours

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


def figures() -> tuple[Figure, ...]:
    """All of them, in the order of the papers."""
    return (
        *_end_to_end(),
        *_scaling(),
        *_affinity(),
        *_trajectory_level(),
        *_serverless(),
        *_bound_sweep(),
        *_transfers(),
        *_redundancy(),
        *_prefill_decode(),
        *_queue_scheduling(),
        *_beyond(),
    )


def _end_to_end() -> Iterator[Figure]:
    large = Case(paper.affine(QWEN3_32B), rollart(1), 5)
    separated = paper.disaggregated(QWEN3_32B)
    for schedule, published, scenario in (
        (sync_plus(), 2.05, paper.monolithic(QWEN3_32B)),
        (one_off(), 1.35, separated),
        (areal(1), 1.31, separated),
    ):
        name = f"Figure 10a: rollart over {schedule.name}, 32B"
        yield Figure(name, large, Case(scenario, schedule), (published, published), why=_WHY_10A)
    for model in paper.MODELS:
        ours = Case(paper.affine(model), rollart(1), 5)
        slow = Case(paper.monolithic_judged_here(model), sync(), 2)
        plus = Case(paper.monolithic(model), sync_plus(), 4)
        size = model.name.removeprefix("Qwen3-")
        yield Figure(
            f"Figure 10b: throughput of rollart over sync, {size}",
            ours, slow, (2.65, 4.58), step_rate, _WHY_SYNC,
        )  # fmt: skip
        yield Figure(
            f"Figure 10b: throughput of sync_plus over sync, {size}",
            plus, slow, (1.40, 2.40), step_rate, _WHY_SYNC,
        )  # fmt: skip


def _scaling() -> Iterator[Figure]:
    base = Case(paper.monolithic(QWEN3_14B, 64), sync_plus())
    for devices in (64, 96, 128):
        ours = Case(paper.disaggregated(QWEN3_14B, devices), rollart(1), 5)
        name = f"Figure 10c: rollart on {devices} H800 over sync_plus on 64, 14B"
        yield Figure(name, ours, base, (1.33, 2.08), step_rate, _WHY_10C)


def _affinity() -> Iterator[Figure]:
    for model in (QWEN3_8B, QWEN3_32B):
        size = model.name.removeprefix("Qwen3-")
        mixed = Case(paper.equal_cost(model, 64, 24), rollart(1), 5)
        for h800, h20, published in ((0, 208, (1.30, 1.68)), (72, 0, (1.12, 1.37))):
            other = Case(paper.equal_cost(model, h800, h20), rollart(1), 5)
            kind = "H20" if h20 else "H800"
            name = f"Figure 11a: affinity over {kind} only, {size}"
            yield Figure(name, mixed, other, published, why=_WHY_11A)


def _trajectory_level() -> Iterator[Figure]:
    for sigma, published in ((1.0, 1.23), (4.0, None), (7.0, None), (10.0, 2.27)):
        scenario = paper.gaussian_environments(sigma)
        span = (published, published) if published else (1.23, 2.27)
        name = f"Figure 11b: trajectory- over batch-level, sigma {sigma:g} s"
        trajectory, batch = Case(scenario, sync_plus(), 3), Case(scenario, sync(), 3)
        yield Figure(name, trajectory, batch, span, rollout_s, _WHY_11B)


def _serverless() -> Iterator[Figure]:
    ours = Case(paper.judged(serverless=True), sync_plus(), 3)
    local = Case(paper.judged(serverless=False), sync_plus(), 3)
    name = "Figure 12: rollout time with a serverless judge"
    yield Figure(name, ours, local, (158 / 77, 158 / 77), rollout_s, _WHY_12)
    name = "Figure 12: utilization of the judge, four H800"
    yield Figure(name, local, None, (0.06, 0.06), reward_utilization, _WHY_12)
    name = "Figure 12: utilization of the judge, serverless"
    yield Figure(name, ours, None, (0.88, 0.88), reward_utilization, _WHY_12)


def _bound_sweep() -> Iterator[Figure]:
    scenario = paper.affine(QWEN3_8B)
    base = Case(scenario, rollart(1), 5)
    for alpha in range(2, 7):
        ours = Case(scenario, rollart(alpha), 5 + alpha)
        name = f"Figure 13: alpha {alpha} over 1, 8B"
        yield Figure(name, ours, base, (1.0, 1.22), why=_WHY_13)


def _transfers() -> Iterator[Figure]:
    for model, published in zip(paper.MODELS, (1.4, 5.1, 9.6), strict=True):
        case = Case(paper.affine(model), rollart(1), 5)
        name = f"Table 4: exposed weight pull [s], {model.name.removeprefix('Qwen3-')}"
        yield Figure(name, case, None, (published, published), exposed_pull_s, _WHY_T4)


def _redundancy() -> Iterator[Figure]:
    base = Case(paper.redundant(16, 8, 16, 128), sync_plus(), 3)
    for groups, size in ((16, 12), (24, 8), (24, 12)):
        ours = Case(paper.redundant(groups, size, 16, 128), sync_plus(), 3)
        name = f"Figure 14b: {groups} groups of {size} over 16 of 8"
        yield Figure(name, ours, base, (1.0, 1.62), rollout_s, _WHY_14B)
    base = Case(paper.redundant_environments(32, 8), sync_plus(), 3)
    for groups, size, published in ((36, 9, 3.10), (36, 12, 5.45)):
        ours = Case(paper.redundant_environments(groups, size), sync_plus(), 3)
        name = f"ROLL Flash Figure 10: {groups}x{size} over 32x8"
        yield Figure(name, ours, base, (published, published), rollout_s, _WHY_FLASH_10)


def _prefill_decode() -> Iterator[Figure]:
    for model, prefill, published in (
        (QWEN3_32B, 1, 1.03),
        (QWEN3_32B, 2, 1.05),
        (paper.MIXTURE_OF_EXPERTS, 1, 1.11),
        (paper.MIXTURE_OF_EXPERTS, 2, 1.21),
    ):
        ours = Case(paper.nodes(model, prefill, disaggregate=True), sync_plus(), 2)
        together = Case(paper.nodes(model, prefill, disaggregate=False), sync_plus(), 2)
        size = model.name.removeprefix("Qwen3-")
        name = f"Table 5: {prefill}P{4 - prefill}D over colocation, {size}"
        yield Figure(name, ours, together, (published, published), rollout_s, _WHY_T5)


def _queue_scheduling() -> Iterator[Figure]:
    batch = Case(paper.filtered(0), sync(), 4)
    queue = Case(paper.filtered(16), sync_plus(), 4)
    name = "ROLL Flash Figure 7: queue scheduling, 8x8 and 16 more prompts"
    yield Figure(name, queue, batch, (125 / 37, 125 / 37), rollout_s, _WHY_FLASH_7)
    for prompts, responses, published in ((64, 16, 1.84), (16, 32, 1.95)):
        scenario = paper.replicated(prompts, responses)
        alone = Case(scenario, sync_plus(), 3)
        together = Case(scenario, sync_plus().switched(prompt_replication=False), 3)
        name = f"ROLL Flash Figure 8: prompt replication, {prompts}x{responses}"
        yield Figure(name, alone, together, (published, published), rollout_s, _WHY_FLASH_8)


def _beyond() -> Iterator[Figure]:
    for model in paper.MODELS:
        scenario = paper.affine(model)
        ours = Case(scenario, rollart_plus(1), 6)
        base = Case(scenario, rollart(1), 5)
        size = model.name.removeprefix("Qwen3-")
        yield Figure(f"Beyond: rollart_plus over rollart, {size}", ours, base, None)


_WHY_10A = _WHY_SYNC = _WHY_10C = _WHY_11A = _WHY_11B = _WHY_12 = _WHY_13 = ""
_WHY_T4 = _WHY_14B = _WHY_FLASH_10 = _WHY_T5 = _WHY_FLASH_7 = _WHY_FLASH_8 = ""


def run_case(case: Case, seed: int = 0) -> Simulated:
    """Simulate one case."""
    record = simulate(case.scenario, case.schedule, seed=seed, steps=case.steps)
    warmup = 0 if case.schedule.order.index(Phase.TRAIN) == 2 else 2
    return Simulated(record, report(record, case.scenario, case.schedule, seed, warmup=warmup))
