"""Upper bounds of the step time that ROLL Flash proves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.simulation.report.bounds import batch_of, work_s
from rollart_flow.simulation.scenario import Scenario
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
    slots = batch_of((1 + alpha) * n / count)
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
