"""What no schedule can beat for the attempts that were trained on, and what theory promises.

The invariant: each bound holds for every schedule that keeps its promise about staleness, given
the same attempts: it assumes perfect packing, no waiting, no pull of weights, and that nothing is
thrown away.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rollart_flow.control.schedule.schedules import Phase, Schedule
from rollart_flow.simulation.hardware import EngineModel, Roofline
from rollart_flow.simulation.models.batching import MAX_SEQUENCES
from rollart_flow.simulation.record import AttemptRecord, Record
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.workloads import Script

_SHARES = 40
"""How finely the split of what is in flight between two pools is searched."""
_OLDEST = 1_000
"""Versions; a schedule that allows more allows any."""


@dataclass(frozen=True, slots=True)
class StepTimeBound:
    """Seconds per step that cannot be beaten, by what they are bound by."""

    rollout_s: float
    """Work of the trained attempts over the rollout pools, each attempt where it costs least."""
    training_s: float
    chain_s: float
    """The longest trained attempt from its first observation on, alone on the fastest worker, over
    the versions that it may span, or all of them over the environments that run at once, whichever
    is more. Resets are not in it: environments start beside the step before."""
    push_s: float
    """Weights over the link between training and rollout, once for each step."""
    serial: bool
    """Whether training waits for rollout and the reverse."""

    @property
    def step_s(self) -> float:
        """The step cannot take less."""
        rollout = max(self.rollout_s, self.chain_s)
        if self.serial:
            return rollout + self.training_s + self.push_s
        return max(rollout, self.training_s, self.push_s)


def chain_s(script: Script, scenario: Scenario) -> float:
    """Seconds from the first observation to the last token or step of an attempt that never waits,
    on the fastest of the workers."""
    rooflines = [roofline for roofline, _ in _workers(scenario)]
    if scenario.disaggregated is not None:
        prefill = min(_prefill_s(script, roofline, 1) for roofline in rooflines)
        generation = prefill + min(_decode_s(script, roofline, 1) for roofline in rooflines)
    else:
        generation = min(_work_s(script, roofline, 1) for roofline in rooflines)
    return script.environment_s - script.reset_s + generation


def _workers(scenario: Scenario) -> list[tuple[EngineModel, int]]:
    """Inference workers by kind, those included that training lends."""
    workers: Counter[EngineModel] = Counter()
    for worker, count in scenario.workers():
        workers[worker] += count
    if scenario.sliding:
        degree = scenario.tensor_parallel
        lent = Roofline(scenario.model, scenario.training.device, degree)
        workers[lent] += scenario.sliding // degree
    return list(workers.items())


def _work_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """Seconds of a worker that an attempt takes when it shares passes with `batch` alike."""
    return _prefill_s(script, roofline, batch) + _decode_s(script, roofline, batch)


def _prefill_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """What of it are prompts."""
    seconds = 0.0
    context = 0
    fixed_s = roofline.prefill_s(1, 0)
    for turn in script.turns:
        new = turn.observation_tokens
        prefill = roofline.prefill_s(new, context + new / 2)
        # Prompts share passes too: what is left of one is its arithmetic.
        seconds += prefill if batch == 1 else max(prefill - fixed_s, prefill / batch)
        context += new + turn.action_tokens
    return seconds


def _decode_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """What of it are actions. A prompt's pass gives the first token of its action."""
    seconds = 0.0
    context = 0
    a, b = roofline.decode_line(batch, batch * script.tokens / 2)
    for turn in script.turns:
        context += turn.observation_tokens + turn.action_tokens
        middle = context - turn.action_tokens / 2
        seconds += (turn.action_tokens - 1) * (a / batch + b * middle)
    return seconds


def is_serial(schedule: Schedule) -> bool:
    """Whether training waits for rollout and the reverse."""
    return schedule.order.index(Phase.TRAIN) < schedule.order.index(Phase.UPDATE)


def bound(
    record: Record, scenario: Scenario, schedule: Schedule, *, warmup: int = 0
) -> StepTimeBound:
    """The bound for the batches of a run after its first `warmup` steps.

    What may have been done of an attempt before that is not counted: as much of it as passes, alone
    on the fastest worker, from its start to the end of the last of these steps.
    """
    batches = [batch for step, batch in sorted(record.batches.items()) if step > warmup]
    steps = [[record.attempts[t] for t in batch.trajectory_ids] for batch in batches]
    training = [scenario.training_s([attempt.tokens for attempt in step]) for step in steps]
    serial = is_serial(schedule)
    began = record.steps[warmup - 1].ended if warmup and not serial else 0.0
    chains = [[chain_s(attempt.script, scenario) for attempt in step] for step in steps]
    shares = [
        [_share(attempt, chain, began) for attempt, chain in zip(step, of_step, strict=True)]
        for step, of_step in zip(steps, chains, strict=True)
    ]
    left = [
        [c * s for c, s in zip(*pair, strict=True)] for pair in zip(chains, shares, strict=True)
    ]
    slots = scenario.slots(schedule)
    spread = math.fsum(map(max, left)) / _span(schedule)
    filled = math.fsum(map(math.fsum, left)) / slots
    work = [
        (attempt.script, share)
        for step, of_step in zip(steps, shares, strict=True)
        for attempt, share in zip(step, of_step, strict=True)
    ]
    count = len(batches)
    rollout = _rollout_s(work, scenario, slots) / count
    # Where weights are exchanged beside training, the first step has none to push.
    pushes = count - (schedule.overlapped and not warmup)
    return StepTimeBound(
        rollout,
        math.fsum(training) / count,
        max(spread, filled) / count,
        scenario.push_s * pushes / count,
        serial,
    )


def _share(attempt: AttemptRecord, chain: float, began: float) -> float:
    """What of an attempt cannot have been done before a moment."""
    before = max(0.0, began - attempt.started - attempt.script.reset_s)
    return max(0.0, 1.0 - before / chain) if before else 1.0


def _span(schedule: Schedule) -> float:
    """Versions that an attempt may span; infinite where nothing is too old."""
    ages = range(1, _OLDEST)
    return next((float(age) for age in ages if schedule.bound.is_stale(age, 0)), math.inf)


def _alpha(schedule: Schedule) -> float | Fraction:
    """Versions that an attempt may span: what is in flight beyond one batch tells it."""
    return Fraction(schedule.bound.capacity(1000), 1000) - 1


Work = Sequence[tuple[Script, float]]
"""Scripts, and what share of each is to be done."""


def _rollout_s(work: Work, scenario: Scenario, in_flight: int) -> float:
    """Least seconds in which the workers can do all of it, perfectly packed."""
    workers = _workers(scenario)
    if scenario.disaggregated is not None:
        (one, ones), (two, twos) = scenario.workers()
        prefill = math.fsum(
            share * _prefill_s(s, one, _batch(in_flight / ones)) for s, share in work
        )
        decode = math.fsum(share * _decode_s(s, two, _batch(in_flight / twos)) for s, share in work)
        return max(prefill / ones, decode / twos)
    if len(workers) != 2:
        # Each attempt where it costs least, as if all workers were of that kind.
        costs = [_shared(roofline, in_flight / count) for roofline, count in workers]
        least = math.fsum(min(cost(s) for cost in costs) * share for s, share in work)
        return least / sum(count for _, count in workers)
    (one, ones), (two, twos) = workers
    return min(
        _two_pools_s(
            work,
            (_shared(one, in_flight * part / ones), ones),
            (_shared(two, in_flight * (1 - part) / twos), twos),
        )
        for part in (i / _SHARES for i in range(1, _SHARES))
    )


def _batch(sequences: float) -> int:
    """Sequences that share the passes of a worker."""
    return max(1, min(MAX_SEQUENCES, math.ceil(sequences)))


def _shared(roofline: EngineModel, sequences: float) -> Callable[[Script], float]:
    """Cost of an attempt where so many sequences share a worker."""
    batch = _batch(sequences)
    return lambda script: _work_s(script, roofline, batch)


def _two_pools_s(
    work: Work,
    one: tuple[Callable[[Script], float], int],
    two: tuple[Callable[[Script], float], int],
) -> float:
    """Both pools end together, each with the attempts that it is better at (one of them split)."""
    costs = sorted(
        ((share * one[0](s) / one[1], share * two[0](s) / two[1]) for s, share in work if share),
        key=lambda c: c[0] / c[1],
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
    slots = _batch((1 + alpha) * n / count)
    times = [script.environment_s + _work_s(script, roofline, slots) * slots for script in scripts]
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
