"""ROLLART section 7.3: Figures 11, 12 and 13, the ablations of the four requirements."""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedules import rollart, sync, sync_plus
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import (
    OTHER_LENGTHS,
    Figure,
    reward_utilization,
    rollout_s,
    settled,
    step_s,
    token_s,
)
from tests.benchmarks.paper.scenarios import JUDGED_STEPS, MODELS, ROLLART, Scenarios


def figures(given: Scenarios) -> Iterator[Figure]:
    """Figures 11a, 11b, 12 and 13."""
    yield from _affinity(given)
    yield from _trajectory_level(given)
    yield from _serverless(given)
    yield from _bound_sweep(given)


def _affinity(given: Scenarios) -> Iterator[Figure]:
    """Per token, as the sweep of the bound."""
    for model in MODELS:
        size = model.name.removeprefix("Qwen3-")
        mixed = settled(given.equal_cost(model, 64, 24), ROLLART)
        for h800, h20, published in ((0, 208, (1.30, 1.68)), (72, 0, (1.12, 1.37))):
            other = settled(given.equal_cost(model, h800, h20), ROLLART)
            kind = "H20" if h20 else "H800"
            name = f"Figure 11a: affinity over {kind} only, {size}"
            yield Figure(name, mixed, other, published, token_s, _WHY_11A)


def _trajectory_level(given: Scenarios) -> Iterator[Figure]:
    for sigma, published in ((1.0, 1.23), (4.0, None), (7.0, None), (10.0, 2.27)):
        scenario = given.gaussian_environments(sigma)
        span = (published, published) if published else (1.23, 2.27)
        name = f"Figure 11b: trajectory- over batch-level, sigma {sigma:g} s"
        trajectory, batch = Case(scenario, sync_plus(), steps=10), Case(scenario, sync(), steps=10)
        yield Figure(name, trajectory, batch, span, rollout_s, _WHY_11B)


def _serverless(given: Scenarios) -> Iterator[Figure]:
    ours = Case(given.judged(serverless=True), rollart(1), steps=JUDGED_STEPS)
    local = Case(given.judged(serverless=False), rollart(1), steps=JUDGED_STEPS)
    name = "Figure 12: rollout time with a serverless judge"
    yield Figure(name, ours, local, (158 / 77, 158 / 77), step_s, _WHY_12)
    name = "Figure 12: utilization of the judge, four H800"
    yield Figure(name, local, None, (0.06, 0.06), reward_utilization, _WHY_12)
    name = "Figure 12: utilization of the judge, serverless"
    yield Figure(name, ours, None, (0.88, 0.88), reward_utilization, _WHY_12)


def _bound_sweep(given: Scenarios) -> Iterator[Figure]:
    """Per token, since the tokens of five steps differ by more than what a bound gains."""
    for model in MODELS:
        scenario = given.affine(model)
        base = settled(scenario, ROLLART)
        for alpha in range(2, 7):
            ours = settled(scenario, rollart(alpha).switched(overlapped=True), alpha)
            name = f"Figure 13: alpha {alpha} over 1, {model.name.removeprefix('Qwen3-')}"
            yield Figure(name, ours, base, (1.0, 1.22), token_s, _WHY_13)


_WHY_11A = (
    OTHER_LENGTHS + "the longest trajectory or training binds the step and not the rollout pool, "
    "whose price and size matter less"
)
_WHY_11B = "web tasks of 5 to 30 turns stand for the task, which the paper does not name"
_WHY_12 = (
    "how many environments a job has, how much the judge reads for a trajectory, and what a "
    "serverless instance is paid for, is not published"
)
_WHY_13 = OTHER_LENGTHS + "training binds at every bound, so that more in flight gains nothing"
