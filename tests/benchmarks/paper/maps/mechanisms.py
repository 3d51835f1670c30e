"""The mechanisms of the papers, each with the comparison whose gain a map shows.

The comparison at the paper's hardware is that of a figure of `published`, with the same cases.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rollart_flow.control.schedule.schedules import rollart, sync, sync_plus
from rollart_flow.simulation.hardware import QWEN3_8B
from rollart_flow.simulation.report.comparison import Case
from rollart_flow.simulation.scenario import Dedicated, Pool, Scenario
from tests.benchmarks.paper.figures import Figure, in_turns, rollout_s, settled, step_s, token_s
from tests.benchmarks.paper.flash.scenarios import CYCLES, asynchronous, thoughts
from tests.benchmarks.paper.scenarios import JUDGED_STEPS, MIXTURE_OF_EXPERTS, ROLLART, Scenarios

LENGTHS = (1.0, 4.0, 0.25, 2.0, 0.5)
VARIANCES = (1.0, 2.0, 0.25, 1.5, 0.5)
BATCHES = (1.0, 0.25, 4.0, 0.5, 2.0)
"""Factors, the paper's first: a map of size n takes the first n of each axis."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism: what of the hardware is varied, and the comparison at a value of that."""

    name: str
    figure: str
    """Name of the figure at the paper's point."""
    hardware_is: str
    hardware: tuple[int, ...]
    """Values, the paper's first."""
    compare: Callable[[Scenarios, int], Figure]


def _affinity(given: Scenarios, h20: int) -> Figure:
    h800 = round(72 - h20 / 2.85)
    mixed = settled(given.equal_cost(QWEN3_8B, h800, h20), ROLLART)
    alone = settled(given.equal_cost(QWEN3_8B, 72, 0), ROLLART)
    return Figure("affinity", mixed, alone, (1.12, 1.37), token_s)


def _prefill_decode(given: Scenarios, prefill: int) -> Figure:
    ours, together = (
        in_turns(given.nodes(MIXTURE_OF_EXPERTS, prefill, disaggregate=on), sync_plus())
        for on in (True, False)
    )
    return Figure("pd", ours, together, (1.21, 1.21), rollout_s)


def _redundancy(given: Scenarios, devices: int) -> Figure:
    ours, base = (
        Case(_shared(given.redundant_environments(*size), devices), sync_plus(), steps=3)
        for size in ((36, 12), (32, 8))
    )
    return Figure("redundancy", ours, base, (5.45, 5.45), rollout_s)


def _replication(given: Scenarios, devices: int) -> Figure:
    scenario = _served(given.replicated(64, 16), devices)
    together = sync_plus().switched(prompt_replication=False)
    alone, same = (Case(scenario, schedule, steps=3) for schedule in (sync_plus(), together))
    return Figure("replication", alone, same, (1.84, 1.84), rollout_s)


def _queue(given: Scenarios, devices: int) -> Figure:
    queue = Case(_served(given.filtered(16), devices), sync_plus(), steps=4)
    batch = Case(_served(given.filtered(0), devices), sync(), steps=4)
    return Figure("queue", queue, batch, (125 / 37, 125 / 37), rollout_s)


def _serverless(given: Scenarios, judging: int) -> Figure:
    local = given.judged(serverless=False)
    if isinstance(local.reward, Dedicated) and judging != local.reward.workers:
        reward = replace(local.reward, workers=judging)
        name = f"judge on {judging} H800"
        local = replace(_served(local, 8 - judging), name=name, reward=reward)
    ours, against = (
        Case(scenario, rollart(1), steps=JUDGED_STEPS)
        for scenario in (given.judged(serverless=True), local)
    )
    return Figure("serverless", ours, against, (158 / 77, 158 / 77), step_s)


def _alpha(given: Scenarios, infer: int) -> Figure:
    think = given.parameters.think
    ours = asynchronous(thoughts(given, think, train=40 - infer, infer=infer), 2)
    base = in_turns(thoughts(given, think, train=40, infer=0), sync_plus(), CYCLES)
    return Figure("alpha", ours, base, (1.64, 1.64), token_s)


def _served(scenario: Scenario, devices: int) -> Scenario:
    """The scenario with another number of devices for rollout."""
    (pool,) = scenario.rollout
    if devices == pool.devices:
        return scenario
    return replace(
        scenario,
        name=f"{scenario.name} on {devices}",
        rollout=(Pool(pool.device, devices),),
    )


def _shared(scenario: Scenario, devices: int) -> Scenario:
    """The scenario with another number of devices that serve and train in turn."""
    if devices == scenario.training.devices:
        return scenario
    pool = Pool(scenario.training.device, devices)
    return replace(scenario, name=f"{scenario.name} on {devices}", training=pool)


_FLASH = "ROLL Flash"
MECHANISMS = {
    each.name: each
    for each in (
        Mechanism(
            name="affinity",
            figure="Figure 11a: affinity over H800 only, 8B",
            hardware_is="H20 in a rollout for the price of 72 H800",
            hardware=(24, 96, 8, 160, 48),
            compare=_affinity,
        ),
        Mechanism(
            name="pd",
            figure="Table 5: 2P2D over colocation, 30B-A3B",
            hardware_is="nodes of four that prefill",
            hardware=(2, 1, 3),
            compare=_prefill_decode,
        ),
        Mechanism(
            name="redundancy",
            figure=f"{_FLASH} Figure 10: 36x12 over 32x8",
            hardware_is="H800",
            hardware=(32, 8, 128, 16, 64),
            compare=_redundancy,
        ),
        Mechanism(
            name="replication",
            figure=f"{_FLASH} Figure 8: prompt replication, 64x16",
            hardware_is="H800 for rollout",
            hardware=(16, 4, 64, 8, 32),
            compare=_replication,
        ),
        Mechanism(
            name="queue",
            figure=f"{_FLASH} Figure 7: queue scheduling, 8x8 and 16 more prompts",
            hardware_is="H800 for rollout",
            hardware=(16, 4, 64, 8, 32),
            compare=_queue,
        ),
        Mechanism(
            name="serverless",
            figure="Figure 12: rollout time with a serverless judge",
            hardware_is="H800 of eight that judge",
            hardware=(4, 6, 2),
            compare=_serverless,
        ),
        Mechanism(
            name="alpha",
            figure=f"{_FLASH} Takeaway 3: async(2), 24Train16Infer over Sync-ROLL",
            hardware_is="H800 of 40 that infer",
            hardware=(16, 24, 8, 28, 12),
            compare=_alpha,
        ),
    )
}
"""The mechanisms by name."""
