"""A simulated run over time: spans, bars in lanes, and their SVG text without a plotting library.

The invariants: two trajectories of a lane never overlap, and there are no more lanes than
trajectories at the busiest moment; the same runs give the same text, and all runs of a picture
share one time scale, so that lengths can be compared.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from xml.sax.saxutils import escape

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


_LEFT, _WIDTH, _RIGHT = 110, 1100, 30
_TITLE, _ROW, _GAP, _AXIS = 34, 14, 4, 34
_TALL, _THIN, _THICK = 420, 0.6, 9.0
_TICKS = 12
_COLOURS = ("#4269d0", "#3ca951", "#a463f2", "#9c6b4e", "#e377c2", "#17a2b8", "#ff8ab7", "#7a8b00")
_ACTIVITIES = {
    Activity.WAIT: ("#dddddd", "training waits"),
    Activity.TRAIN: ("#efb118", "trains"),
    Activity.PUSH: ("#b07a00", "pushes weights"),
    Activity.SUSPEND: ("#f4b6ab", "rollout is suspended"),
    Activity.UPDATE: ("#d62728", "weights are updated"),
}
_FATES = {
    Fate.TRAINED: "trained on",
    Fate.THROWN: "thrown away",
    Fate.OPEN: "left when the run ended",
}


def _thickness(one: Timeline) -> float:
    return min(_THICK, max(_THIN, _TALL / one.lanes))


def _height(one: Timeline) -> float:
    """Height of a run with its axis [px]."""
    return _TITLE + 2 * (_ROW + _GAP) + one.lanes * _thickness(one) + _AXIS


def render(runs: Sequence[Timeline]) -> str:
    """The picture, as an SVG document."""
    domains = sorted({bar.domain for one in runs for bar in one.bars})
    seconds = max((one.seconds for one in runs), default=0.0) or 1.0
    legend, top = _legend(domains)
    height = top + sum(_height(one) for one in runs)
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_px(height)}" '
        f'viewBox="0 0 {width} {_px(height)}" font-family="sans-serif" font-size="11">',
        _styles(domains),
        f'<rect width="{width}" height="{_px(height)}" fill="white"/>',
        *legend,
    ]
    for one in runs:
        parts.append(f'<g transform="translate({_LEFT} {_px(top)})">')
        parts += _draw(one, domains, _WIDTH / seconds, seconds)
        parts.append("</g>")
        top += _height(one)
    return "\n".join([*parts, "</svg>", ""])


def _styles(domains: Sequence[str]) -> str:
    """A class for each activity, domain and fate; thrown-away trajectories are hatched."""
    lines = [f".{kind} {{ fill: {colour}; }}" for kind, (colour, _) in _ACTIVITIES.items()]
    hatches = []
    for index, _ in enumerate(domains):
        colour = _COLOURS[index % len(_COLOURS)]
        lines.append(f".d{index}.trained {{ fill: {colour}; }}")
        lines.append(f".d{index}.thrown {{ fill: url(#h{index}); }}")
        lines.append(f".d{index}.open {{ fill: {colour}; fill-opacity: 0.18; }}")
        hatches.append(
            f'<pattern id="h{index}" width="4" height="4" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="4" height="4" fill="{colour}" '
            f'fill-opacity="0.15"/><rect width="1.4" height="4" fill="{colour}" '
            'fill-opacity="0.75"/></pattern>'
        )
    lines += [".after { opacity: 0.45; }", ".grid { stroke: #000; stroke-opacity: 0.1; }"]
    return "\n".join(["<defs>", "<style>", *lines, "</style>", *hatches, "</defs>"])


def _legend(domains: Sequence[str]) -> tuple[list[str], float]:
    """The lines of swatches, and the y coordinate at which they end [px]."""
    first = domains[0] if domains else ""
    phases = [(kind, said) for kind, (_, said) in _ACTIVITIES.items()]
    by_domain = [(f"d{i} {Fate.TRAINED}", domain) for i, domain in enumerate(domains)]
    by_fate = [(f"d0 {fate}", f"{first} {said}") for fate, said in _FATES.items()]
    by_fate.append((f"d0 {Fate.TRAINED} after", "from its end to its commit"))
    parts: list[str] = []
    y = 10.0
    for swatches in (phases, by_domain, by_fate if domains else []):
        x = float(_LEFT)
        for kind, said in swatches:
            parts.append(_rect(kind, x, y, 22, 10))
            parts.append(f'<text x="{_px(x + 27)}" y="{_px(y + 9)}">{escape(said)}</text>')
            x += 44 + 6.5 * len(said)
        y += 18
    return parts, y


def _draw(one: Timeline, domains: Sequence[str], scale: float, seconds: float) -> list[str]:
    """All shapes of one run, its left edge at x = 0; `scale` is in pixels per second."""
    parts = [f'<text y="22" font-size="13" font-weight="bold">{escape(one.title)}</text>']
    y = float(_TITLE)
    for label, spans in (("training", one.training), ("weights", one.weights)):
        parts.append(_label(label, y + 11))
        for span in spans:
            said = f"{_ACTIVITIES[span.activity][1]}, {_times(span.start, span.end)}"
            wide = (span.end - span.start) * scale
            parts.append(_rect(span.activity, span.start * scale, y, wide, _ROW, said))
        y += _ROW + _GAP
    counts = Counter(bar.fate for bar in one.bars)
    parts.append(_label("trajectories", y + 11))
    noted = [f"{counts[fate]} {said.split()[0]}" for fate, said in _FATES.items() if counts[fate]]
    room = int(one.lanes * _thickness(one) / 12) - 1
    for line, said in enumerate(noted[: max(0, room)]):
        parts.append(_label(said, y + 25 + 12 * line, "#777"))
    for bar in one.bars:
        kind, top = f"d{domains.index(bar.domain)} {bar.fate}", y + bar.lane * _thickness(one)
        said = f"{bar.name}, {_times(bar.start, bar.committed)}"
        high, wide = _thickness(one) * 0.88, (bar.ended - bar.start) * scale
        parts.append(_rect(kind, bar.start * scale, top, wide, high, said))
        after = (bar.committed - bar.ended) * scale
        parts.append(_rect(f"{kind} after", bar.ended * scale, top, after, high))
    return parts + _axis(seconds, scale, y + one.lanes * _thickness(one))


def _axis(seconds: float, scale: float, bottom: float) -> list[str]:
    parts = [f'<path d="M0 {_px(bottom)}h{_px(seconds * scale)}" stroke="#000"/>']
    step = tick_s(seconds)
    for tick in range(int(seconds / step) + 1):
        x, said = _px(tick * step * scale), f"{tick * step:g}"
        parts.append(f'<path class="grid" d="M{x} {_TITLE}V{_px(bottom)}"/>')
        parts.append(f'<text x="{x}" y="{_px(bottom + 14)}" text-anchor="middle">{said}</text>')
    return [*parts, _label("seconds", bottom + 14)]


def tick_s(seconds: float) -> float:
    """A round distance between the ticks of an axis: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(seconds / _TICKS))
    return next(n * power for n in (1, 2, 5, 10) if seconds / (n * power) <= _TICKS)


def _label(said: str, y: float, colour: str = "#000") -> str:
    return f'<text x="-8" y="{_px(y)}" text-anchor="end" fill="{colour}">{said}</text>'


def _rect(kind: str, x: float, y: float, width: float, height: float, said: str = "") -> str:
    place = f'x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}"'
    shape = f'<rect class="{kind}" {place}'
    return f"{shape}><title>{escape(said)}</title></rect>" if said else f"{shape}/>"


def _times(start: float, end: float) -> str:
    return f"{start:.1f} to {end:.1f} s"


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
