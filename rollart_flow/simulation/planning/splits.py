"""The split of devices between rollout and training in closed form.

These are the upper bounds of ROLL Flash, Propositions 1 and 2 (section 3.1), for engine workers of
several classes that serve a part of the domains each. A worker of the propositions, which takes one
sample at a time, is one of the sequences that an engine worker decodes together.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.simulation.hardware import Roofline, SimulatedModel, TrainingCost
from rollart_flow.simulation.planning.allocation import Allocation
from rollart_flow.simulation.planning.devices import DEVICES
from rollart_flow.simulation.report.bounds import batch_of, is_serial, work_s
from rollart_flow.simulation.workloads import Script

_BATCH = 1000


def asynchrony(schedule: Schedule) -> float:
    """Batches that a schedule has in flight beyond the one that is trained next."""
    return schedule.bound.capacity(_BATCH) / _BATCH - 1


@dataclass(frozen=True)
class DeviceSplit:
    """The closed forms for a model, a batch size and some attempts that stand for all."""

    model: SimulatedModel
    batch_size: int
    attempts: Sequence[tuple[str, Script]]
    """Domain and script of each."""
    epochs: int

    def generation_s(self, given: Allocation, workers: int) -> tuple[float, float]:
        """(time of a step's rollout by throughput, time of the longest attempt), the worst of all
        classes, with this many workers of each [s] (Proposition 1)."""
        by_class: dict[str, list[Script]] = defaultdict(list)
        bound_to = dict(given.affinity)
        for domain, script in self.attempts:
            by_class[bound_to[domain]].append(script)
        alpha, worst = asynchrony(given.schedule), (0.0, 0.0)
        for name, scripts in by_class.items():
            samples = self.batch_size * len(scripts) / len(self.attempts)
            engine = Roofline(self.model, DEVICES[name], given.units)
            slots = batch_of((1 + alpha) * samples / workers, engine)
            times = [s.environment_s + work_s(s, engine, slots) * slots for s in scripts]
            mean_s = math.fsum(times) / len(times)
            worst = max(worst, (samples * mean_s / (slots * workers), max(times)))
        return worst

    def training_s(self, trainer: str, ranks: int) -> float:
        """Time of a step's training [s]."""
        repeated = math.ceil(self.batch_size / len(self.attempts))
        lengths = [script.tokens for _, script in self.attempts] * repeated
        cost = TrainingCost(self.model, DEVICES[trainer])
        return cost.step_s(lengths[: self.batch_size], ranks, self.epochs)

    def step_s(self, given: Allocation) -> float:
        """Upper bound of the step time [s] (equations 8 and 9)."""
        busy_s, longest_s = self.generation_s(given, given.workers)
        rollout_s = busy_s + longest_s / (1 + asynchrony(given.schedule))
        training_s = self.training_s(given.trainer, given.ranks)
        if is_serial(given.schedule):
            return rollout_s + training_s
        return max(rollout_s, training_s)

    def best_share(self, given: Allocation, devices: int) -> float:
        """beta*, the share of `devices` for training that minimizes the bound (equation 10)."""
        workers = max(1, devices // given.units)
        busy_s, longest_s = self.generation_s(given, workers)
        rollout = (busy_s + longest_s / (1 + asynchrony(given.schedule))) * devices
        training = self.training_s(given.trainer, devices) * devices
        return training / (rollout + training)
