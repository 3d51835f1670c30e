"""Computes the figures of a simulated run from its record.

The invariant: all figures of a report cover the same steps: the steps after the warm-up. Attempts
belong to the steps in which they ended. Only the mix of domains among the tasks is counted from
the start, since a run has a single one.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.simulation.record import AttemptRecord, PoolTimes, Record, StepTimes
from rollart_flow.simulation.report.bounds import StepTimeBound, bound, is_serial
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.types import Outcome

WARMUP = 2
"""Steps until an overlapping pipeline is full."""


def warmup_of(schedule: Schedule) -> int:
    """Number of first steps that are not measured under a schedule."""
    return 1 if is_serial(schedule) else WARMUP


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the device seconds of one pool."""

    busy: float
    suspended: float
    """While weights are exchanged, or training uses the devices."""
    idle: float
    """While there are no requests."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one scenario under one schedule."""

    scenario: str
    schedule: str
    seed: int
    steps: int
    """Number of measured steps."""
    step_s: float
    throughput: float
    """Prompt and response tokens of a batch per second of step time (ROLLART section 7.1)."""
    bound: StepTimeBound
    utilization: Mapping[str, Utilization]
    """Utilization by pool; "training" is one of them."""
    bubbles_s: Mapping[str, float]
    """Time per step in which training waited, by cause."""
    staleness: Mapping[int, int]
    """Number of trained trajectories by staleness."""
    lag: Mapping[int, int]
    """Number of trained trajectories by lag."""
    wasted: Mapping[str, float]
    """Share of the sampled tokens that no step trained on, by reason."""
    represented: Mapping[str, float]
    """Share of a domain among the trained trajectories divided by its share among the tasks."""
    slow_represented: float
    """Trained share of the slowest quarter of attempts, divided by the trained share of all."""
    exposed_pull_s: float
    push_s: float
    reward_utilization: float | None
    """Share of the paid device time in which the reward model worked; None if there is none."""
    found_affinity: Mapping[str, str]
    """Hardware class by domain that profilers chose, the newest of each; empty if it was given."""

    @property
    def staleness_max(self) -> int:
        """Largest staleness of a trained trajectory."""
        return max(self.staleness, default=0)

    @property
    def lag_max(self) -> int:
        """Largest lag of a trained trajectory."""
        return max(self.lag, default=0)

    @property
    def wasted_fraction(self) -> float:
        """Share of the sampled tokens that no step trained on."""
        return math.fsum(self.wasted.values())


def report(
    record: Record, scenario: Scenario, schedule: Schedule, seed: int, *, warmup: int | None = None
) -> Report:
    """Compute the figures of a run after `warmup` steps, `warmup_of(schedule)` by default.

    A run shorter than the warm-up counts only its last step.
    """
    wanted = warmup_of(schedule) if warmup is None else warmup
    warmup = min(wanted, len(record.steps) - 1)
    steps = record.steps[warmup:]
    began = record.steps[warmup - 1].ended if warmup else 0.0
    window_s = steps[-1].ended - began
    batches = [record.batches[times.step] for times in steps]
    trained = {t: record.attempts[t] for batch in batches for t in batch.trajectory_ids}
    push_s = _mean([times.pushed - times.trained for times in steps])
    return Report(
        scenario=scenario.name,
        schedule=schedule.name,
        seed=seed,
        steps=len(steps),
        step_s=window_s / len(steps),
        throughput=sum(attempt.tokens for attempt in trained.values()) / window_s,
        bound=bound(record, scenario, schedule, warmup=warmup),
        utilization=_utilization(record, scenario, steps, warmup, window_s),
        bubbles_s={
            "batch and weights": _mean([times.formed - times.asked for times in steps]),
            "push": push_s,
            "update": _mean([times.ended - times.pushed for times in steps]),
        },
        staleness=dict(sorted(Counter(s for b in batches for s in b.staleness).items())),
        lag=dict(sorted(Counter(lag for b in batches for lag in b.lag).items())),
        wasted=_wasted(record, trained, began),
        represented=_represented(record, trained),
        slow_represented=_slow_represented(record, trained, began),
        exposed_pull_s=_mean(record.exposed_pull_s),
        push_s=push_s,
        reward_utilization=(
            record.reward_busy_s / record.reward_paid_s if record.reward_paid_s else None
        ),
        found_affinity={each.domain: each.hardware for each in record.bindings},
    )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _utilization(
    record: Record, scenario: Scenario, steps: list[StepTimes], warmup: int, window_s: float
) -> dict[str, Utilization]:
    before = record.pools[warmup - 1] if warmup else {}
    found: dict[str, Utilization] = {}
    for hardware, end in record.pools[-1].items():
        times = end - before.get(hardware, PoolTimes())
        total = times.devices * window_s - times.away_s
        busy = (times.prefill_s + times.decode_s) / total
        suspended = times.suspended_s / total
        found[hardware] = Utilization(busy, suspended, max(0.0, 1 - busy - suspended))
    train = math.fsum(times.trained - times.formed for times in steps) / window_s
    found["training"] = Utilization(train, 0.0, 1 - train)
    return found


def _wasted(record: Record, trained: Mapping[str, AttemptRecord], began: float) -> dict[str, float]:
    """Wasted shares by reason, without attempts that the end of the run cut off or left waiting."""
    lost: defaultdict[str, int] = defaultdict(int)
    for attempt, reason in _untrained(record, began):
        lost[reason] += attempt.sampled_tokens
    total = sum(attempt.sampled_tokens for attempt in trained.values()) + sum(lost.values())
    return {reason: tokens / total for reason, tokens in sorted(lost.items()) if tokens}


def _untrained(record: Record, began: float) -> list[tuple[AttemptRecord, str]]:
    """Attempts that ended after `began` and that no step trained on, each with the reason."""
    trained = {t for batch in record.batches.values() for t in batch.trajectory_ids}
    late = (attempt for attempt in record.attempts.values() if attempt.ended >= began)
    others = (attempt for attempt in late if attempt.trajectory_id not in trained)
    reasons = ((attempt, _reason(record, attempt)) for attempt in others)
    return [(attempt, reason) for attempt, reason in reasons if reason is not None]


def _reason(record: Record, attempt: AttemptRecord) -> str | None:
    """Why an attempt was not trained on; None if the run ended before."""
    if attempt.outcome is Outcome.CANCELLED:
        return None
    ended_itself = attempt.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED)
    unseen = None if ended_itself else attempt.reason
    return record.left.get(attempt.trajectory_id, unseen)


def _represented(record: Record, trained: Mapping[str, AttemptRecord]) -> dict[str, float]:
    tasks = record.admitted
    counts = Counter(attempt.domain for attempt in trained.values())
    total, trained_total = sum(tasks.values()), sum(counts.values())
    return {domain: (counts[domain] / trained_total) / (tasks[domain] / total) for domain in tasks}


def _slow_represented(record: Record, trained: Mapping[str, AttemptRecord], began: float) -> float:
    """`Report.slow_represented` over attempts with a known fate, by the length of their scripts."""
    known = [*trained.values(), *(attempt for attempt, _ in _untrained(record, began))]
    known.sort(key=lambda attempt: attempt.script.action_tokens + attempt.script.environment_s)
    slow = known[-max(1, len(known) // 4) :]
    share = sum(a.trajectory_id in trained for a in known) / len(known)
    return sum(a.trajectory_id in trained for a in slow) / len(slow) / share
