"""Progress of a run: a live display in a terminal, occasional lines in a pipe.

The display depends on the messages of `rollart_flow.telemetry` alone.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import console, duration, live, sparkline
from rollart_flow.cli.stages import following_stages, render_stages
from rollart_flow.telemetry import OnProgress, Progress, ProgressKind, ignore_progress

if TYPE_CHECKING:
    from rollart_flow.analysis.activity import StageActivity

PHASES = ("wait_s", "suspend_s", "update_s", "resume_s", "train_s", "publish_s")
"""Columns of `steps` with the duration of each phase of a step."""
_CURVE = "success_sampled"
"""The metric that is shown, since greedy success on a fixed map is 0 or 1."""
_RECENT = 10
"""Number of steps over which rates and estimates are computed."""
_LINES = 10
"""Number of lines about steps in a pipe, over a whole run."""


@dataclass
class ProgressView:
    """The state of a run according to the messages so far."""

    name: str
    phase: str = "starting"
    step: int = 0
    total_steps: int = 0
    staleness: int = 0
    """Largest staleness of a trained trajectory so far [versions]."""
    lag: int = 0
    """Largest lag of a trained trajectory so far [versions]."""
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    success: dict[str, list[float]] = field(default_factory=dict)
    """Curve of `success_sampled` by domain."""
    step_seconds: list[float] = field(default_factory=list)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    committed: list[tuple[float, int]] = field(default_factory=list)
    """(clock [s], total trajectories) at the end of recent steps. The total counts committed
    trajectories, or trained ones if the messages lack the number of committed ones."""
    activity: "StageActivity | None" = None
    """Activity of the stages; None before the run has tables."""

    def take(self, progress: Progress, now: float) -> None:
        self.total_steps = progress.total_steps or self.total_steps
        match progress.kind:
            case ProgressKind.PHASE:
                self.phase = progress.text
            case ProgressKind.STEP:
                self._take_step(progress, now)
            case ProgressKind.EVALUATION:
                for row in progress.rows:
                    if row["metric"] == _CURVE:
                        self.success.setdefault(row["domain"], []).append(row["value"])
            case ProgressKind.NOTE | ProgressKind.BEGUN:
                pass  # the caller acts on them

    def _take_step(self, progress: Progress, now: float) -> None:
        row = progress.row
        self.phase = "training"
        self.step = row["step"]
        self.reward = row["reward_mean"]
        self.rewards.update(progress.rewards)
        self.staleness = max(self.staleness, row["staleness_max"])
        self.lag = max(self.lag, row["lag_max"] or 0)  # null in runs of earlier versions
        self.step_seconds = [*self.step_seconds, row["step_s"]][-_RECENT:]
        for phase in PHASES:
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + row[phase]
        before = self.committed[-1][1] if self.committed else 0
        total = progress.committed or before + row["trajectories"]
        self.committed = [*self.committed, (now, total)][-_RECENT:]

    @property
    def left_s(self) -> float | None:
        """Estimated remaining seconds, from recent steps."""
        if not self.step_seconds or not self.total_steps:
            return None
        middle = sorted(self.step_seconds)[len(self.step_seconds) // 2]
        return middle * (self.total_steps - self.step)

    @property
    def per_second(self) -> float | None:
        """Trajectories committed each second, over recent steps."""
        if len(self.committed) < 2:
            return None
        (start, first), (end, last) = self.committed[0], self.committed[-1]
        return (last - first) / (end - start) if end > start and last > first else None


@contextmanager
def showing_progress(name: str, *, quiet: bool = False) -> Iterator[OnProgress]:
    """Show a run's messages while the block runs, as a terminal or a pipe needs them."""
    out = console()
    if quiet:
        yield ignore_progress
    elif out.is_terminal:
        with _live(name, out) as on_progress:
            yield on_progress
    else:
        yield _lines(name, out)


@contextmanager
def _live(name: str, out: Console) -> Iterator[OnProgress]:
    view = ProgressView(name)
    spinner = Spinner("dots")
    with (
        live(lambda elapsed_s: render_view(view, spinner, elapsed_s), out) as shown,
        ExitStack() as following,
    ):

        def on_progress(progress: Progress) -> None:
            view.take(progress, time.monotonic())
            if progress.kind is ProgressKind.NOTE:
                shown.console.print(progress.text, style="dim")
            elif progress.kind is ProgressKind.BEGUN:
                following.enter_context(following_stages(progress.text, view))
            shown.refresh()

        yield on_progress


def render_view(view: ProgressView, spinner: Spinner, elapsed_s: float) -> RenderableType:
    head = Table.grid(padding=(0, 1))
    left = view.left_s
    head.add_row(
        spinner,
        Text(view.name, style="bold"),
        ProgressBar(total=view.total_steps or 1, completed=view.step, width=30),
        f"step {view.step}/{view.total_steps or '?'}",
        Text(view.phase, style="cyan"),
        f"{duration(elapsed_s)} so far" + ("" if left is None else f", {duration(left)} left"),
    )
    stages = [] if view.activity is None else [render_stages(view.activity)]
    return Group(head, _domains(view), *stages, _figures(view))


def _domains(view: ProgressView) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for domain in sorted({*view.rewards, *view.success}):
        reward = view.rewards.get(domain)
        curve = view.success.get(domain, [])
        mean = "" if reward is None else f"reward {reward:.2f}"
        success = f"success {curve[-1]:.2f}" if curve else ""
        table.add_row(f"  {domain}", mean, success, Text(sparkline(curve), style="green"))
    return table


def _rates(view: ProgressView) -> list[str]:
    parts = [f"staleness up to {view.staleness}, lag up to {view.lag}"]
    if view.per_second is not None:
        parts.append(f"{view.per_second:.1f} trajectories/s")
    return parts


def _figures(view: ProgressView) -> Text:
    """Staleness, throughput, and the longest phases."""
    parts = [] if view.reward is None else [f"mean reward {view.reward:.2f}"]
    parts += _rates(view)
    total = sum(view.phase_seconds.values())
    if total > 0:
        longest = sorted(view.phase_seconds.items(), key=lambda item: -item[1])[:3]
        parts += [f"{phase[:-2]} {seconds / total:.0%}" for phase, seconds in longest]
    return Text("  " + ", ".join(parts), style="dim")


def _lines(name: str, out: Console) -> OnProgress:
    """Return a callback that prints each phase, note and evaluation, and a tenth of the steps."""
    view = ProgressView(name)

    def on_progress(progress: Progress) -> None:
        view.take(progress, time.monotonic())
        line = line_of(view, progress)
        if line:
            out.print(f"{name}: {line}", soft_wrap=True)

    return on_progress


def line_of(view: ProgressView, progress: Progress) -> str:
    """The line for a message in a pipe; empty for most steps."""
    match progress.kind:
        case ProgressKind.STEP:
            return _step_line(view)
        case ProgressKind.EVALUATION:
            rows = (row for row in progress.rows if row["metric"].startswith(_CURVE))
            scores = ", ".join(f"{r['domain']} {r['metric']} {r['value']:.2f}" for r in rows)
            version = progress.rows[0]["policy_version"] if progress.rows else "?"
            return f"version {version}: {scores}"
        case ProgressKind.BEGUN:
            return ""
        case _:
            return progress.text


def _step_line(view: ProgressView) -> str:
    often = max(1, view.total_steps // _LINES)
    if view.step % often and view.step not in (1, view.total_steps):
        return ""
    parts = [f"step {view.step}/{view.total_steps or '?'}", f"reward {view.reward:.2f}"]
    parts += _rates(view)
    if view.left_s:
        parts.append(f"{duration(view.left_s)} left")
    return ", ".join(parts)
