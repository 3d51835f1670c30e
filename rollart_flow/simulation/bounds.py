"""What no schedule can beat for the attempts that were trained on, and what theory promises.

The invariant: each bound holds for every schedule that keeps its promise about staleness, given
the same attempts: it assumes perfect packing, no waiting, no transfer of weights, and that nothing
is thrown away.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rollart_flow.control.schedules import Phase, Schedule
from rollart_flow.simulation.batching import MAX_SEQUENCES
from rollart_flow.simulation.hardware import EngineModel
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.rewards import RULE_S
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.workloads import Script

_SHARES = 40
"""How finely the split of what is in flight between two pools is searched."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds per step that cannot be beaten, by what they are bound by."""

    rollout_s: float
    """Work of the trained attempts over the rollout pools, each attempt where it costs least."""
    training_s: float
    chain_s: float
    """The longest trained attempt from its first observation on, alone on the fastest worker, over
    (1 + alpha). Its reset is not in it: environments start beside the step before."""
    serial: bool
    """Whether training waits for rollout and the reverse."""

    @property
    def step_s(self) -> float:
        """The step cannot take less."""
        rollout = max(self.rollout_s, self.chain_s)
        return rollout + self.training_s if self.serial else max(rollout, self.training_s)


def chain_s(script: Script, rooflines: Iterable[EngineModel]) -> float:
    """Seconds from the first observation to the reward of an attempt that never waits, on the
    fastest of the workers."""
    generation = min(_work_s(script, roofline, 1) for roofline in rooflines)
    return script.environment_s - script.reset_s + generation + RULE_S


def _work_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """Seconds of a worker that an attempt takes when it shares passes with `batch` alike."""
    seconds = 0.0
    context = 0
    a, b = roofline.decode_line(batch, batch * script.tokens / 2)
    fixed_s = roofline.prefill_s(1, 0)
    for turn in script.turns:
        new, seen = turn.observation_tokens, context + turn.observation_tokens / 2
        prefill = roofline.prefill_s(new, seen)
        # Prompts share passes too: what is left of one is its arithmetic.
        seconds += prefill if batch == 1 else max(prefill - fixed_s, prefill / batch)
        context += new + turn.action_tokens
        middle = context - turn.action_tokens / 2
        seconds += turn.action_tokens * (a / batch + b * middle)
    return seconds


def is_serial(schedule: Schedule) -> bool:
    """Whether training waits for rollout and the reverse."""
    return schedule.order.index(Phase.TRAIN) < schedule.order.index(Phase.UPDATE)


def bound(record: Record, scenario: Scenario, schedule: Schedule, *, warmup: int = 0) -> Bound:
    """The bound for the batches of a run after its first `warmup` steps."""
    batches = [batch for step, batch in sorted(record.batches.items()) if step > warmup]
    scripts = [[record.attempts[t].script for t in batch.trajectory_ids] for batch in batches]
    lengths = [[record.attempts[t].tokens for t in batch.trajectory_ids] for batch in batches]
    training = [scenario.training_s(of_step) for of_step in lengths]
    workers = scenario.workers()
    rooflines = [roofline for roofline, _ in workers]
    serial = is_serial(schedule)
    spread = 1 if serial else 1 + math.ceil(_alpha(schedule))
    chains = [max(chain_s(script, rooflines) for script in of_step) for of_step in scripts]
    flat = [script for of_step in scripts for script in of_step]
    in_flight = spread * scenario.batch_size
    rollout = _rollout_s(flat, workers, in_flight) / len(batches)
    mean_training = math.fsum(training) / len(training)
    mean_chain = math.fsum(chains) / len(chains) / spread
    return Bound(rollout, mean_training, mean_chain, serial)


def _alpha(schedule: Schedule) -> float | Fraction:
    """Versions that an attempt may span: what is in flight beyond one batch tells it."""
    return Fraction(schedule.bound.capacity(1000), 1000) - 1


def _rollout_s(
    scripts: Sequence[Script], workers: Sequence[tuple[EngineModel, int]], in_flight: int
) -> float:
    """Least seconds in which the workers can do all of it, perfectly packed."""
    if len(workers) == 1:
        roofline, count = workers[0]
        return math.fsum(_shared(roofline, in_flight / count)(s) for s in scripts) / count
    (one, ones), (two, twos) = workers[:2]
    return min(
        _two_pools_s(
            scripts,
            (_shared(one, in_flight * share / ones), ones),
            (_shared(two, in_flight * (1 - share) / twos), twos),
        )
        for share in (i / _SHARES for i in range(1, _SHARES))
    )


def _shared(roofline: EngineModel, sequences: float) -> Callable[[Script], float]:
    """Cost of an attempt where so many sequences share a worker."""
    batch = max(1, min(MAX_SEQUENCES, math.ceil(sequences)))
    return lambda script: _work_s(script, roofline, batch)


def _two_pools_s(
    scripts: Sequence[Script],
    one: tuple[Callable[[Script], float], int],
    two: tuple[Callable[[Script], float], int],
) -> float:
    """Both pools end together, each with the attempts that it is better at (one of them split)."""
    costs = sorted(
        ((one[0](s) / one[1], two[0](s) / two[1]) for s in scripts), key=lambda c: c[0] / c[1]
    )
    left, right = 0.0, math.fsum(second for _, second in costs)
    for first, second in costs:
        if left + first >= right - second:
            part = (right - left) / (first + second)
            return left + part * first
        left += first
        right -= second
    return left


@dataclass(frozen=True, slots=True)
class Propositions:
    """Upper bounds of ROLL Flash section 3.1 on the seconds of a step."""

    sync_s: float
    """Proposition 2.1."""
    async_s: float
    """Proposition 2.2, at the scenario's split of devices."""
    best_share: float
    """beta*, the share of devices for training that makes `async_s` least (equation 10)."""


def propositions(scripts: Sequence[Script], scenario: Scenario, schedule: Schedule) -> Propositions:
    """ROLL Flash's upper bounds for a batch of attempts like these.

    A worker is one slot of one inference worker at the batch that the schedule keeps in flight, as
    the proposition's workers take one sample each.
    """
    alpha = float(_alpha(schedule))
    roofline, count = scenario.workers()[0]
    n = scenario.batch_size
    slots = max(1, min(MAX_SEQUENCES, math.ceil((1 + alpha) * n / count)))
    times = [script.environment_s + _work_s(script, roofline, slots) * slots for script in scripts]
    mean, longest = math.fsum(times) / len(times), max(times)
    devices = scenario.training.devices
    rollout_devices = sum(r.devices * c for r, c in scenario.workers())
    total = rollout_devices if scenario.shared else devices + rollout_devices
    training_s = scenario.cost.step_s([s.tokens for s in scripts[:n]], total, scenario.epochs)
    k = slots * total / roofline.devices
    beta = devices / total
    generation = n * mean + longest / (1 + alpha)
    train = training_s * k
    return Propositions(
        sync_s=n * mean / k + longest + training_s,
        async_s=max(generation / ((1 - beta) * k), train / (beta * k)) if beta < 1 else math.inf,
        best_share=train / (generation + train),
    )
