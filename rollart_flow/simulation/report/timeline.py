"""A simulated run over time: training, weights, and trajectories in lanes.

The invariant: two trajectories of a lane never overlap, and there are no more lanes than
trajectories at the busiest moment.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rollart_flow.control.ids import group_cursor
from rollart_flow.simulation.record import Activity, ActivitySpan, AttemptRecord, Record
from rollart_flow.types import Outcome

MOST_BARS = 1500
"""Most trajectories of one run that are shown; longer runs show every n-th group per domain."""


class Fate(StrEnum):
    """The fate of a trajectory."""

    TRAINED = "trained"
    THROWN = "thrown"
    OPEN = "open"
    """The run ended before the trajectory was trained on or thrown away."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One trajectory; times in seconds."""

    name: str
    domain: str
    fate: Fate
    start: float
    ended: float
    committed: float
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """One run over time."""

    title: str
    training: tuple[ActivitySpan, ...]
    weights: tuple[ActivitySpan, ...]
    """Suspensions come first: later spans are drawn over them."""
    bars: tuple[Bar, ...]

    @property
    def lanes(self) -> int:
        """Number of rows of trajectories."""
        return 1 + max((bar.lane for bar in self.bars), default=0)

    @property
    def seconds(self) -> float:
        """End of the last span or trajectory [s]."""
        ends = [span.end for span in (*self.training, *self.weights)]
        return max((*ends, *(bar.committed for bar in self.bars)), default=0.0)


def timeline(title: str, record: Record, *, most: int = MOST_BARS) -> Timeline:
    """A run over time; the title says if not every trajectory is shown."""
    training: list[ActivitySpan] = []
    for times in record.steps:
        training.append(ActivitySpan(Activity.WAIT, times.asked, times.formed))
        training.append(ActivitySpan(Activity.TRAIN, times.formed, times.trained))
        training.append(ActivitySpan(Activity.PUSH, times.trained, times.pushed))
    attempts = list(record.attempts.values())
    every = max(1, math.ceil(len(attempts) / most))
    shown = _sampled(attempts, every)
    if every > 1:
        share = f"{len(shown)} of {len(attempts)} trajectories"
        title += f" (one of every {every} groups of each domain is drawn: {share})"
    trained = {t for batch in record.batches.values() for t in batch.trajectory_ids}
    bars = (_bar(attempt, _fate(attempt, record, trained)) for attempt in shown)
    weights = sorted(record.weights, key=lambda span: span.activity is not Activity.SUSPEND)
    return Timeline(title, _lasting(training), _lasting(weights), pack(bars))


def _lasting(spans: Iterable[ActivitySpan]) -> tuple[ActivitySpan, ...]:
    return tuple(span for span in spans if span.end > span.start)


def _sampled(attempts: Sequence[AttemptRecord], every: int) -> list[AttemptRecord]:
    """The attempts of every n-th group of each domain, since domains alternate among groups."""
    groups: defaultdict[str, set[str]] = defaultdict(set)
    for attempt in attempts:
        groups[attempt.domain].add(attempt.group_id)
    shown = {g for of_one in groups.values() for g in sorted(of_one, key=group_cursor)[::every]}
    return [attempt for attempt in attempts if attempt.group_id in shown]


def _fate(attempt: AttemptRecord, record: Record, trained: set[str]) -> Fate:
    if attempt.trajectory_id in trained:
        return Fate.TRAINED
    whole = attempt.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED)
    if attempt.outcome is Outcome.CANCELLED or (whole and attempt.trajectory_id not in record.left):
        return Fate.OPEN
    return Fate.THROWN


def _bar(attempt: AttemptRecord, fate: Fate) -> Bar:
    version = "no token" if attempt.version is None else f"version {attempt.version}"
    name = f"{attempt.trajectory_id}, {version}, {attempt.outcome}"
    return Bar(name, attempt.domain, fate, attempt.started, attempt.ended, attempt.committed)


def pack(bars: Iterable[Bar]) -> tuple[Bar, ...]:
    """Bars in as few lanes as possible: in order of start, each takes the lane free the longest."""
    free: list[tuple[float, int]] = []
    packed: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.committed, bar.name)):
        lane = heapq.heappop(free)[1] if free and free[0][0] <= bar.start else len(free)
        heapq.heappush(free, (bar.committed, lane))
        packed.append(replace(bar, lane=lane))
    return tuple(packed)
