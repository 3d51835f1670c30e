"""The figures of ROLLART and ROLL Flash: their cases, published numbers, and why ours may differ.

The invariant: a figure is defined completely here, independent of any result.
"""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import (
    areal,
    one_off,
    rollart,
    rollart_plus,
    sync,
    sync_plus,
)
from rollart_flow.simulation.hardware import QWEN3_8B, QWEN3_14B, QWEN3_32B
from rollart_flow.simulation.report.comparison import Case
from rollart_flow.simulation.scenario import Scenario
from tests.benchmarks.paper import scenarios
from tests.benchmarks.paper.figures import (
    Figure,
    exposed_pull_s,
    over_bound,
    reward_utilization,
    rollout_s,
    slow_represented,
    token_s,
    wasted,
)
from tests.benchmarks.paper.flash import agentic, rlvr
from tests.benchmarks.paper.parameters import ASSUMED, Parameters
from tests.benchmarks.paper.rollart import characterization, cross_cutting, end_to_end, production
from tests.benchmarks.paper.scenarios import Scenarios

BEYOND_ALPHAS = (6, 4, 2)
"""Alphas of `rollart_plus` for the models: the smallest that keep training, or the link, busy."""


def _case(scenario: Scenario, schedule: Schedule, steps: int = 4) -> Case:
    return Case(scenario, schedule, steps=steps)


def figures(parameters: Parameters = ASSUMED) -> tuple[Figure, ...]:
    """All figures under some parameters, in the order of the papers."""
    given = Scenarios(parameters)
    return (
        *_end_to_end(given),
        *_scaling(given),
        *_affinity(given),
        *_trajectory_level(given),
        *_serverless(given),
        *_bound_sweep(given),
        *_transfers(given),
        *_redundancy(given),
        *_prefill_decode(given),
        *_queue_scheduling(given),
        *_beyond(given),
        *characterization.figures(given),
        *end_to_end.figures(given),
        *cross_cutting.figures(given),
        *production.figures(given),
        *rlvr.figures(given),
        *agentic.figures(given),
    )


LEFT_OUT = {
    "Figure 5": "distributions of env.reset and env.step stand in the plot alone",
    "Figure 10a, curves": "scores over time stand in the plot alone",
    "Figure 10b, bars": "throughput of each schedule and size stands in the plot alone",
    "Figure 10c, One-off and AReaL": "said to scale little, without a number",
    "Figure 15a, turns": "over 40 times the mean: a lower bound, and no distribution of turns",
    "Figure 15c": "1.66 times by another ratio of devices and tuned caches, neither of which is "
    "published",
    "ROLL Flash Figure 1b, other counts": "stand in the plot alone",
    "ROLL Flash Figure 3b": "step times stand in the plot alone",
    "ROLL Flash Figure 4": "scores of learning algorithms, which a simulation of time has not",
    "ROLL Flash Figure 7, other sizes": "stand in the plot alone",
    "ROLL Flash Figure 8, other sizes": "stand in the plot alone",
    "ROLL Flash Figure 9": "speedups stand in the plot alone",
    "ROLL Flash Figure 10, other cells": "stand in the plot alone",
}
"""What the papers show and the text does not print, or a simulation does not have, and why."""


def _end_to_end(given: Scenarios) -> Iterator[Figure]:
    large = _case(given.affine(QWEN3_32B), scenarios.ROLLART, 6)
    separated = given.disaggregated(QWEN3_32B)
    for schedule, published, scenario in (
        (sync_plus(), 2.05, given.monolithic(QWEN3_32B)),
        (one_off(), 1.35, separated),
        (areal(1), 1.31, separated),
    ):
        name = f"Figure 10a: rollart over {schedule.name}, 32B"
        yield Figure(name, large, _case(scenario, schedule), (published, published), why=_WHY_10A)
    for model in scenarios.MODELS:
        ours = _case(given.affine(model), scenarios.ROLLART, 6)
        slow = _case(given.monolithic_judged_here(model), sync(), 2)
        plus = _case(given.monolithic(model), sync_plus(), 4)
        size = model.name.removeprefix("Qwen3-")
        yield Figure(
            f"Figure 10b: throughput of rollart over sync, {size}",
            ours, slow, (2.65, 4.58), token_s, _WHY_SYNC,
        )  # fmt: skip
        yield Figure(
            f"Figure 10b: throughput of sync_plus over sync, {size}",
            plus, slow, (1.40, 2.40), token_s, _WHY_SYNC,
        )  # fmt: skip


def _scaling(given: Scenarios) -> Iterator[Figure]:
    base = _case(given.monolithic(QWEN3_14B, 64), sync_plus())
    for devices in (64, 96, 128):
        ours = _case(given.disaggregated(QWEN3_14B, devices), scenarios.ROLLART, 6)
        name = f"Figure 10c: rollart on {devices} H800 over sync_plus on 64, 14B"
        yield Figure(name, ours, base, (1.33, 2.08), token_s, _WHY_10C)


def _affinity(given: Scenarios) -> Iterator[Figure]:
    for model in (QWEN3_8B, QWEN3_32B):
        size = model.name.removeprefix("Qwen3-")
        mixed = _case(given.equal_cost(model, 64, 24), scenarios.ROLLART, 6)
        for h800, h20, published in ((0, 208, (1.30, 1.68)), (72, 0, (1.12, 1.37))):
            other = _case(given.equal_cost(model, h800, h20), scenarios.ROLLART, 6)
            kind = "H20" if h20 else "H800"
            name = f"Figure 11a: affinity over {kind} only, {size}"
            yield Figure(name, mixed, other, published, why=_WHY_11A)


def _trajectory_level(given: Scenarios) -> Iterator[Figure]:
    for sigma, published in ((1.0, 1.23), (4.0, None), (7.0, None), (10.0, 2.27)):
        scenario = given.gaussian_environments(sigma)
        span = (published, published) if published else (1.23, 2.27)
        name = f"Figure 11b: trajectory- over batch-level, sigma {sigma:g} s"
        trajectory, batch = _case(scenario, sync_plus(), 3), _case(scenario, sync(), 3)
        yield Figure(name, trajectory, batch, span, rollout_s, _WHY_11B)


def _serverless(given: Scenarios) -> Iterator[Figure]:
    ours = _case(given.judged(serverless=True), sync_plus(), 3)
    local = _case(given.judged(serverless=False), sync_plus(), 3)
    name = "Figure 12: rollout time with a serverless judge"
    yield Figure(name, ours, local, (158 / 77, 158 / 77), rollout_s, _WHY_12)
    name = "Figure 12: utilization of the judge, four H800"
    yield Figure(name, local, None, (0.06, 0.06), reward_utilization, _WHY_12)
    name = "Figure 12: utilization of the judge, serverless"
    yield Figure(name, ours, None, (0.88, 0.88), reward_utilization, _WHY_12)


def _bound_sweep(given: Scenarios) -> Iterator[Figure]:
    scenario = given.affine(QWEN3_8B)
    base = _case(scenario, scenarios.ROLLART, 6)
    for alpha in range(2, 7):
        ours = _case(scenario, rollart(alpha).switched(overlapped=True), 6 + alpha)
        name = f"Figure 13: alpha {alpha} over 1, 8B"
        yield Figure(name, ours, base, (1.0, 1.22), why=_WHY_13)


def _transfers(given: Scenarios) -> Iterator[Figure]:
    for model, published in zip(scenarios.MODELS, (1.4, 5.1, 9.6), strict=True):
        case = _case(given.affine(model), scenarios.ROLLART, 6)
        name = f"Table 4: exposed weight pull [s], {model.name.removeprefix('Qwen3-')}"
        yield Figure(name, case, None, (published, published), exposed_pull_s, _WHY_T4)


def _redundancy(given: Scenarios) -> Iterator[Figure]:
    base = _case(given.redundant(16, 8, 16, 128), sync_plus(), 3)
    for groups, size in ((16, 12), (24, 8), (24, 12)):
        ours = _case(given.redundant(groups, size, 16, 128), sync_plus(), 3)
        name = f"Figure 14b: {groups} groups of {size} over 16 of 8"
        yield Figure(name, ours, base, (1.0, 1.62), rollout_s, _WHY_14B)
    base = _case(given.redundant_environments(32, 8), sync_plus(), 3)
    for groups, size, published in ((36, 9, 3.10), (36, 12, 5.45)):
        ours = _case(given.redundant_environments(groups, size), sync_plus(), 3)
        name = f"ROLL Flash Figure 10: {groups}x{size} over 32x8"
        yield Figure(name, ours, base, (published, published), rollout_s, _WHY_FLASH_10)


def _prefill_decode(given: Scenarios) -> Iterator[Figure]:
    for model, prefill, published in (
        (QWEN3_32B, 1, 1.03),
        (QWEN3_32B, 2, 1.05),
        (scenarios.MIXTURE_OF_EXPERTS, 1, 1.11),
        (scenarios.MIXTURE_OF_EXPERTS, 2, 1.21),
    ):
        ours = _case(given.nodes(model, prefill, disaggregate=True), sync_plus(), 2)
        together = _case(given.nodes(model, prefill, disaggregate=False), sync_plus(), 2)
        size = model.name.removeprefix("Qwen3-")
        name = f"Table 5: {prefill}P{4 - prefill}D over colocation, {size}"
        yield Figure(name, ours, together, (published, published), rollout_s, _WHY_T5)


def _queue_scheduling(given: Scenarios) -> Iterator[Figure]:
    batch = _case(given.filtered(0), sync(), 4)
    queue = _case(given.filtered(16), sync_plus(), 4)
    name = "ROLL Flash Figure 7: queue scheduling, 8x8 and 16 more prompts"
    yield Figure(name, queue, batch, (125 / 37, 125 / 37), rollout_s, _WHY_FLASH_7)
    for prompts, responses, published in ((64, 16, 1.84), (16, 32, 1.95)):
        scenario = given.replicated(prompts, responses)
        alone = _case(scenario, sync_plus(), 3)
        together = _case(scenario, sync_plus().switched(prompt_replication=False), 3)
        name = f"ROLL Flash Figure 8: prompt replication, {prompts}x{responses}"
        yield Figure(name, alone, together, (published, published), rollout_s, _WHY_FLASH_8)


def _beyond(given: Scenarios) -> Iterator[Figure]:
    """The loss of `rollart` against its bound, and the part of it that `rollart_plus` wins back.

    Every worker may take any task here, and alpha is large enough for the longest trajectory to end
    while training continues: nothing is aborted, and no batch has fewer slow tasks.
    """
    for model, alpha in zip(scenarios.MODELS, BEYOND_ALPHAS, strict=True):
        size = model.name.removeprefix("Qwen3-")
        # The attempts that were admitted together at the start have to leave first.
        first = 2 * (alpha + 1) + 2
        plus = Case(given.unbound(model), rollart_plus(alpha), steps=first + 6, warmup=first)
        for schedule, case in (
            ("rollart", _case(given.affine(model), scenarios.ROLLART, 6)),
            ("rollart_plus", plus),
        ):
            name = f"Beyond: step of {schedule} over its bound, {size}"
            yield Figure(name, case, None, None, over_bound)
        name = f"Beyond: tokens thrown away by rollart_plus, {size}"
        yield Figure(name, plus, None, None, wasted)
        name = f"Beyond: slow quarter trained on by rollart_plus, {size}"
        yield Figure(name, plus, None, None, slow_represented)


_OTHER_LENGTHS = (
    "the papers publish no lengths and latencies of their tasks; with those assumed here "
)
_WHY_10A = (
    _OTHER_LENGTHS + "training on 32 H800 binds whatever overlaps it, so that AReaL's tail and "
    "hardware affinity do not show"
)
_WHY_SYNC = (
    _OTHER_LENGTHS + "steps of environments have heavy tails, and each turn of a batch in lockstep "
    "waits for the slowest of 512"
)
_WHY_10C = _WHY_11A = (
    _OTHER_LENGTHS + "the longest trajectory or training binds the step and not the rollout pool, "
    "whose price and size matter less"
)
_WHY_11B = "web tasks of 5 to 30 turns stand for the task, which the paper does not name"
_WHY_12 = (
    _OTHER_LENGTHS + "the longest of 252 trajectories binds the rollout, which twice the devices "
    "shorten little; a serverless instance is paid for its cold starts"
)
_WHY_13 = _OTHER_LENGTHS + "more in flight makes all of it slower, as training binds already"
_WHY_T4 = (
    "the last bucket's pull and the copy into the devices are exposed here; what else the paper's "
    "workers wait for is not said"
)
_WHY_14B = (
    "surplus is started with the rest here, and what is long is what is cancelled: the price is "
    "the share of slow tasks, which the paper does not show"
)
_WHY_FLASH_10 = (
    "a Gaussian has no tail that redundancy could cut; fail-slow and fail-stop environments, which "
    "the text names, are not quantified"
)
_WHY_T5 = (
    "with prefixes cached the prompts of later turns are short here, so that there is little "
    "prefill to take off the decode workers, which are fewer and share passes among more"
)
_WHY_FLASH_7 = "the share of prompts that all responses solve, or none, is not published"
_WHY_FLASH_8 = (
    "with continuous batching one worker decodes all responses to a prompt side by side; the "
    "paper's baseline decodes them as one static batch"
)
