"""Renders simulated runs as tables, JSON objects and a progress line."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import console, duration, live, sparkline

if TYPE_CHECKING:
    from rollart_flow.simulation.record import Record
    from rollart_flow.simulation.report.comparison import Case, OnStart, Propositions, Row
    from rollart_flow.simulation.report.report import Report

_TEXT = ("scenario", "schedule", "utilization", "staleness")
_COLUMNS = (
    "scenario", "schedule", "seed", "step\n[s]", "tokens\n/s", "bound\n[s]", "step/\nbound",
    "utilization", "staleness", "lag", "wasted", "slow\nquarter", "pull\n[s]",
)  # fmt: skip
_MEANINGS = """\
bound: no schedule of this staleness can have a shorter step. staleness: the largest, and how \
often 0, 1, ... occur; it counts from the version served when a batch is formed. lag: the largest; \
it counts from the version that is trained. slow quarter: trained fraction of the slowest quarter \
of the trajectories, divided by that of all. pull: time that rollout waits for weights in each \
step."""


def as_object(
    row: "Row", *, ratio: float | None = None, published: float | None = None
) -> dict[str, Any]:
    """A row as an object for JSON, with a figure's simulated and published value, if there are."""
    report = row.report
    named = ("scenario", "schedule", "seed", "step_s", "throughput")
    figures = {name: getattr(report, name) for name in named}
    figures |= {
        "bound_step_s": report.bound.step_s,
        "staleness_max": report.staleness_max,
        "lag_max": report.lag_max,
        "wasted_fraction": report.wasted_fraction,
        "ratio": ratio,
        "published": published,
    }
    return figures | asdict(report) | {"propositions": asdict(row.propositions)}


def render_rows(rows: "Sequence[Row]") -> RenderableType:
    """A table with one line per run, and the meanings of its columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in _COLUMNS:
        text = heading in _TEXT
        side: JustifyMethod = "left" if text else "right"
        table.add_column(heading, justify=side, no_wrap=not text, overflow="fold")
    for row in rows:
        table.add_row(*_cells(row.report))
    return Group(table, Text(_MEANINGS, style="dim"))


def _cells(report: "Report") -> tuple[str, ...]:
    ages = [float(report.staleness.get(age, 0)) for age in range(report.staleness_max + 1)]
    return (
        report.scenario,
        report.schedule,
        str(report.seed),
        f"{report.step_s:.1f}",
        f"{report.throughput:,.0f}",
        f"{report.bound.step_s:.1f}",
        f"{report.step_s / report.bound.step_s:.2f}",
        "\n".join(f"{pool} {used.busy:.0%}" for pool, used in report.utilization.items()),
        f"{report.staleness_max} {sparkline(ages, high=max(ages))}",
        str(report.lag_max),
        f"{report.wasted_fraction:.1%}",
        f"{report.slow_represented:.2f}",
        f"{report.exposed_pull_s:.1f}",
    )


def render_details(row: "Row") -> RenderableType:
    report = row.report
    table = Table.grid(padding=(0, 2))
    table.add_row("training waits", _listed(report.bubbles_s, ".1f", " s") + " of each step")
    for pool, used in report.utilization.items():
        parts = {"busy": used.busy, "suspended": used.suspended, "idle": used.idle}
        table.add_row(pool, _listed(parts, ".0%"))
    if report.reward_utilization is not None:
        table.add_row("reward model", f"busy {report.reward_utilization:.0%}")
    for name, ages in (("staleness", report.staleness), ("lag", report.lag)):
        total = sum(ages.values())
        shares = {f"{age}:": count / total for age, count in ages.items()}
        table.add_row(name, _listed(shares, ".1%"))
    table.add_row("wasted tokens", _listed(report.wasted, ".1%"))
    table.add_row("share of domains", _listed(report.represented, ".2f") + " (1: as in the tasks)")
    if found := report.found_affinity:
        table.add_row("found affinity", ", ".join(f"{d} on {h}" for d, h in sorted(found.items())))
    table.add_row("bound", _bound(report))
    table.add_row("upper bounds", _upper_bounds(row.propositions))
    head = Text(f"\n{report.scenario}, {report.schedule}, seed {report.seed}", style="bold")
    return Group(head, table)


def _listed(values: Mapping[str, float], form: str, unit: str = "") -> str:
    return ", ".join(f"{name} {value:{form}}{unit}" for name, value in values.items()) or "none"


def _bound(report: "Report") -> str:
    bound, how = report.bound, "then" if report.bound.serial else "beside"
    return (
        f"rollout {bound.rollout_s:.1f} s, longest chain {bound.chain_s:.1f} s, "
        f"push of weights {bound.push_s:.1f} s; {how} training {bound.training_s:.1f} s"
        + (f"; one after another {bound.cycle_s:.1f} s" if bound.cycle_s else "")
    )


def _upper_bounds(upper: "Propositions") -> str:
    said = f"{upper.sync_s:.1f} s in turns"
    if math.isfinite(upper.async_s):  # infinite if rollout and training share devices
        said += f", {upper.async_s:.1f} s overlapped"
    best = f"best with {upper.best_share:.0%} of the devices for training"
    return f"{said}, {best} (ROLL Flash, Propositions 1 and 2)"


@dataclass
class ComparisonProgress:
    """Progress of a comparison."""

    runs: int
    steps: int
    """Steps of each run."""
    begun: int = 0
    title: str = "starting"
    record: "Record | None" = None
    """Record of the current run; it grows with each step."""

    def start(self, case: "Case", record: "Record") -> None:
        self.begun += 1
        self.title, self.record = case.title, record

    @property
    def done(self) -> int:
        """Steps that all runs have finished so far."""
        if self.record is None:
            return 0
        return (self.begun - 1) * self.steps + len(self.record.steps)

    def left_s(self, elapsed_s: float) -> float | None:
        """Estimate of the remaining time at the pace so far [s]; None before the first step."""
        total = self.runs * self.steps
        return elapsed_s / self.done * (total - self.done) if self.done else None


@contextmanager
def showing_cases(runs: int, steps: int, *, quiet: bool) -> "Iterator[OnStart]":
    """Show progress in a terminal while the block runs."""
    out = console()
    progress = ComparisonProgress(runs, steps)
    if quiet or not out.is_terminal:
        yield progress.start
        return
    spinner = Spinner("dots")
    with live(lambda elapsed_s: render_progress(progress, spinner, elapsed_s), out):
        yield progress.start


def render_progress(
    progress: ComparisonProgress, spinner: Spinner, elapsed_s: float
) -> RenderableType:
    """The progress of a comparison in one line."""
    left = progress.left_s(elapsed_s)
    line = Table.grid(padding=(0, 1))
    line.add_row(
        spinner,
        ProgressBar(total=progress.runs * progress.steps, completed=progress.done, width=30),
        f"run {progress.begun}/{progress.runs}",
        Text(progress.title, style="cyan"),
        f"{duration(elapsed_s)} so far" + ("" if left is None else f", {duration(left)} left"),
    )
    return line
