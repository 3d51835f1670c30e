"""`rollart simulate paper`: the papers' figures, each beside what was published."""

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rollart_flow.cli.arguments import AsJson
from rollart_flow.cli.comparison import as_object
from rollart_flow.cli.output import Interrupted, console, duration, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollart_flow.simulation.comparison import Case
    from rollart_flow.simulation.figures import Figure, Finished


def paper(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Figures whose name has this text, e.g. 'Figure 10a'."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that simulate.")
    ] = os.cpu_count() or 1,
    as_json: AsJson = False,
) -> None:
    """Simulate the figures of ROLLART and ROLL Flash, beside the published numbers."""
    from rollart_flow.simulation.published import figures

    wanted = figures()
    for text in only or ():
        if not any(text in figure.name for figure in wanted):
            raise SettingsError(f"--only {text!r} is in the name of no figure")
    if only:
        wanted = tuple(f for f in wanted if any(text in f.name for text in only))
    began = time.monotonic()
    runs = _simulate(wanted, jobs, quiet=as_json)
    if as_json:
        print_json([_as_object(figure, runs) for figure in wanted])
        return
    out = console()
    out.print(_table(wanted, runs))
    for why, names in _reasons(wanted, runs).items():
        out.print(f"{', '.join(names)}: {why}.", style="dim")
    out.print(f"{len(runs)} simulations in {duration(time.monotonic() - began)}", style="dim")


def _simulate(wanted: "Sequence[Figure]", jobs: int, *, quiet: bool) -> "dict[Case, Finished]":
    from rollart_flow.simulation.figures import run_figures

    out = console()
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = quiet or not out.is_terminal
    with Progress(*columns, console=out, transient=True, disable=hidden) as progress:
        task = progress.add_task("")

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        try:
            return run_figures(wanted, jobs=jobs, on_case=advance)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; --only simulates fewer figures") from None


def _as_object(figure: "Figure", runs: "dict[Case, Finished]") -> dict[str, Any]:
    value = figure.value(runs)
    row = as_object(runs[figure.ours].row, ratio=value, published=figure.nearest(value))
    extra = {"figure": figure.name, "published_range": figure.published}
    return row | extra | {"why": None if figure.agrees(value) else figure.why}


def _table(wanted: "Sequence[Figure]", runs: "dict[Case, Finished]") -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("figure")
    for heading in ("ours", "published", "", "step\n[s]", "bound\n[s]"):
        table.add_column(heading, justify="right")
    for figure in wanted:
        value, report = figure.value(runs), runs[figure.ours].row.report
        table.add_row(
            figure.name,
            f"{value:.2f}",
            _published(figure),
            "" if figure.agrees(value) else "differs",
            f"{report.step_s:.0f}",
            f"{report.bound.step_s:.0f}",
        )
    return table


def _published(figure: "Figure") -> str:
    if figure.published is None:
        return ""
    low, high = figure.published
    return f"{low:.2f}" if low == high else f"{low:.2f}-{high:.2f}"


def _reasons(wanted: "Sequence[Figure]", runs: "dict[Case, Finished]") -> dict[str, list[str]]:
    """Why figures differ, with the names of those that do."""
    reasons: dict[str, list[str]] = {}
    for figure in wanted:
        if not figure.agrees(figure.value(runs)):
            names = reasons.setdefault(figure.why, [])
            if (name := figure.name.partition(":")[0]) not in names:
                names.append(name)
    return reasons
