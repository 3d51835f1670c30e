"""Lower bounds of the step time for the attempts that a run trained on.

The invariant: each bound holds for every schedule with the same staleness bound, given the same
attempts: it assumes perfect packing, no waiting, and no discarded trajectory. Of the pulls of
weights it counts the part for which the engines must be suspended, on the path of `cycle_s`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from rollart_flow.control.schedule.declarations import Swap
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.simulation.hardware import EngineModel
from rollart_flow.simulation.record import AttemptRecord, Record
from rollart_flow.simulation.report.paths import oldest_versions, path_s
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.simulation.workloads import Script

_SHARES = 40
"""Number of splits of the attempts in flight between two pools that are searched."""
_OLDEST = 1_000
"""Largest number of versions that is searched; a schedule that allows more allows any."""


@dataclass(frozen=True, slots=True)
class StepTimeBound:
    """Lower bounds of the time per step, by resource [s]."""

    rollout_s: float
    """Work of the trained attempts over the rollout pools, each attempt where it is cheapest."""
    training_s: float
    chain_s: float
    """The larger of two values: the longest trained attempt from its first observation on, alone on
    the fastest worker, divided by the versions that it may span; all trained attempts, divided by
    the environments that run at once. Resets are not included: environments start beside the step
    before."""
    push_s: float
    """Transfer of weights between training and rollout, once per step."""
    cycle_s: float
    """Mean time of a step whose trainings, transfers and longest attempts follow one another, or 0
    where nothing computes it (`paths.path_s`)."""
    serial: bool
    """Whether training and rollout wait for each other."""

    @property
    def step_s(self) -> float:
        """Lower bound of the whole step [s]."""
        rollout = max(self.rollout_s, self.chain_s)
        if self.serial:
            return rollout + self.training_s + self.push_s
        return max(rollout, self.training_s, self.push_s, self.cycle_s)


def chain_s(script: Script, scenario: Scenario) -> float:
    """Time of an attempt that never waits, on the fastest worker, from the first observation to the
    last token or step [s]."""
    rooflines = [roofline for roofline, _ in _workers(scenario)]
    if scenario.disaggregated is not None:
        prefill = min(_prefill_s(script, roofline, 1) for roofline in rooflines)
        generation = prefill + min(_decode_s(script, roofline, 1) for roofline in rooflines)
    else:
        generation = min(work_s(script, roofline, 1) for roofline in rooflines)
    return script.environment_s - script.reset_s + generation


def _workers(scenario: Scenario) -> list[tuple[EngineModel, int]]:
    """Numbers of inference workers by kind, including the workers that training lends."""
    workers: Counter[EngineModel] = Counter()
    for worker, count in scenario.workers():
        workers[worker] += count
    if scenario.sliding:
        degree = scenario.tensor_parallel
        lent = scenario.roofline(scenario.training.device, degree)
        workers[lent] += scenario.sliding // degree
    return list(workers.items())


def work_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """Time of a worker that an attempt takes when it shares passes with `batch` equal ones [s]."""
    return _prefill_s(script, roofline, batch) + _decode_s(script, roofline, batch)


def _prefill_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """The part of the work that computes prompts [s]."""
    seconds = 0.0
    context = 0
    fixed_s = roofline.prefill_s(1, 0)
    for turn in script.turns:
        new = turn.observation_tokens
        prefill = roofline.prefill_s(new, context + new / 2)
        # Prompts share passes too: what is left of one is its arithmetic.
        seconds += prefill if batch == 1 else max(prefill - fixed_s, prefill / batch)
        seconds += roofline.prompts_s(1)
        context += new + turn.action_tokens
    return seconds


def _decode_s(script: Script, roofline: EngineModel, batch: int) -> float:
    """The part of the work that samples actions; a prompt's pass samples the first token [s]."""
    seconds = 0.0
    context = 0
    a, b = roofline.decode_line(batch, batch * script.tokens / 2)
    for turn in script.turns:
        context += turn.observation_tokens + turn.action_tokens
        middle = context - turn.action_tokens / 2
        seconds += (turn.action_tokens - 1) * (a / batch + b * middle)
    return seconds


def is_serial(schedule: Schedule) -> bool:
    """Whether training and rollout wait for each other under a schedule."""
    return schedule.swap is Swap.AFTER


def bound(
    record: Record, scenario: Scenario, schedule: Schedule, *, warmup: int = 0
) -> StepTimeBound:
    """The bound for the batches of a run after its first `warmup` steps.

    The part of an attempt that may have been done during the warm-up is not counted: as much of it
    as fits, alone on the fastest worker, between its start and the end of the warm-up.
    """
    batches = [batch for step, batch in sorted(record.batches.items()) if step > warmup]
    steps = [[record.attempts[t] for t in batch.trajectory_ids] for batch in batches]
    training = [scenario.training_s([attempt.tokens for attempt in step]) for step in steps]
    serial = is_serial(schedule)
    began = record.steps[warmup - 1].ended if warmup and not serial else 0.0
    work: list[tuple[Script, float]] = []
    left: list[list[float]] = []
    for step in steps:
        left.append([])
        for attempt in step:
            chain = chain_s(attempt.script, scenario)
            share = _share(attempt, chain, began)
            work.append((attempt.script, share))
            left[-1].append(chain * share)
    slots = scenario.slots(schedule)
    spread = math.fsum(map(max, left)) / _span(schedule)
    filled = math.fsum(map(math.fsum, left)) / slots
    count = len(batches)
    rollout = rollout_s(work, scenario, slots) / count
    # Where weights are exchanged beside training, the first step has none to push.
    pushes = count - (schedule.swap is Swap.BESIDE and not warmup)
    longest, push = max(spread, filled) / count, scenario.push_s * pushes / count
    chains, begun = zip(*(_longest(step, scenario, began) for step in steps), strict=True)
    before = [times.trained - began for times in record.steps[:warmup]]
    cycle = 0.0
    if not serial:
        follows = list(zip(training, chains, strict=True))
        cycle = path_s(
            follows, before, scenario.push_s, oldest_versions(schedule.bound), begun,
            scenario.exposed_s,
        )  # fmt: skip
    return StepTimeBound(rollout, math.fsum(training) / count, longest, push, cycle / count, serial)


def _longest(
    step: Sequence[AttemptRecord], scenario: Scenario, began: float
) -> tuple[float, float]:
    """Return the longest chain of the attempts of a batch that were observed after a moment, and
    the time from it to the end of the others, if they never wait [s]."""
    chain = end = 0.0
    for attempt in step:
        seconds = chain_s(attempt.script, scenario)
        if attempt.observed < began:
            end = max(end, attempt.observed - began + seconds)
        else:
            chain = max(chain, seconds)
    return chain, end


def _share(attempt: AttemptRecord, chain: float, began: float) -> float:
    """Share of an attempt that cannot have been done before the moment `began`."""
    before = max(0.0, began - attempt.observed)
    return max(0.0, 1.0 - before / chain) if before else 1.0


def _span(schedule: Schedule) -> float:
    """Versions that an attempt may span; infinite if the schedule has no bound."""
    ages = range(1, _OLDEST)
    return next((float(age) for age in ages if schedule.bound.is_stale(age, 0)), math.inf)


Work = Sequence[tuple[Script, float]]
"""Scripts, and the share of each that is to be done."""


def rollout_s(work: Work, scenario: Scenario, in_flight: int) -> float:
    """Least time in which the workers can do the work, perfectly packed [s]."""
    workers = _workers(scenario)
    if scenario.disaggregated is not None:
        (one, ones), (two, twos) = scenario.workers()
        batches = batch_of(in_flight / ones, one), batch_of(in_flight / twos, two)
        prefill = math.fsum(share * _prefill_s(s, one, batches[0]) for s, share in work)
        decode = math.fsum(share * _decode_s(s, two, batches[1]) for s, share in work)
        return max(prefill / ones, decode / twos)
    if len(workers) != 2:
        # Each attempt where it costs least, as if all workers were of that kind.
        costs = [_shared(roofline, in_flight / count) for roofline, count in workers]
        least = math.fsum(min(cost(s) for cost in costs) * share for s, share in work)
        return least / sum(count for _, count in workers)
    (one, ones), (two, twos) = workers
    first, second = _pool_s(work, one, ones), _pool_s(work, two, twos)
    least = math.inf
    for part in (i / _SHARES for i in range(1, _SHARES)):
        on_one, on_two = first(in_flight * part / ones), second(in_flight * (1 - part) / twos)
        least = min(least, _two_pools_s(on_one, on_two))
    return least


def _pool_s(work: Work, roofline: EngineModel, count: int) -> Callable[[float], list[float]]:
    """Times of a pool of workers for each part of the work that is left, by the sequences that
    share a worker; parts are computed once for each size of a batch."""
    todo = [(script, share) for script, share in work if share]

    @cache
    def of_batch(batch: int) -> list[float]:
        return [share * work_s(script, roofline, batch) / count for script, share in todo]

    return lambda sequences: of_batch(batch_of(sequences, roofline))


def batch_of(sequences: float, engine: EngineModel) -> int:
    """Number of sequences that share the passes of a worker, within the limit of its engine."""
    return max(1, min(engine.sequences, math.ceil(sequences)))


def _shared(roofline: EngineModel, sequences: float) -> Callable[[Script], float]:
    """Cost of an attempt on a worker that this many sequences share."""
    batch = batch_of(sequences, roofline)
    return lambda script: work_s(script, roofline, batch)


def _two_pools_s(one: Sequence[float], two: Sequence[float]) -> float:
    """Time of two pools that end together, each with the parts that are cheaper there [s].

    Args:
        one: time of the first pool for each part of the work, if it did that part [s].
        two: those of the second pool.
    """
    costs = sorted(zip(one, two, strict=True), key=lambda c: c[0] / c[1])
    left, right = 0.0, math.fsum(two)
    for first, second in costs:
        if left + first >= right - second:
            part = (right - left) / (first + second)
            return left + part * first
        left += first
        right -= second
    return left
