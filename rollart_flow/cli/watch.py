"""`rollart watch RUN`: the progress of a run of another terminal or machine, from its tables."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.spinner import Spinner

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, escape_controls, live, plain
from rollart_flow.cli.progress import ProgressView, line_of, render_view
from rollart_flow.cli.summary import summarize
from rollart_flow.cli.summary_view import show_summary
from rollart_flow.telemetry import OnProgress, Progress, ProgressKind

if TYPE_CHECKING:
    from rollart_flow.analysis.activity import ActivityReader, StageActivity

_Look = Callable[["StageActivity"], None]


def watch(
    run: RunName,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks at the tables.")
    ] = 2.0,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run until it ends; reads its tables and changes nothing.

    In a pipe it prints a line now and then, with --json one object for each change. The exit code
    is 1 if the run ended otherwise than finished.
    """
    from rollart_flow.analysis.activity import ActivityReader
    from rollart_flow.store import RunStatus, open_run

    reader = ActivityReader(open_run(run, store=store))
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal end of looking
        status = _watch(reader, every, as_json)
        if status != RunStatus.FINISHED:
            raise typer.Exit(1)


def _watch(reader: "ActivityReader", every_s: float, as_json: bool) -> str:
    info, out = reader.run.info, console()
    view = ProgressView(info.name, phase=str(info.status))
    if as_json:
        return _until_end(reader, every_s, view, lambda _: None, _PrintChanges(view))
    if out.is_terminal:
        spinner = Spinner("dots")

        def render(_: float) -> RenderableType:
            return render_view(view, spinner, (datetime.now(UTC) - info.created_at).total_seconds())

        with live(render, out) as shown:
            # What the user is to keep in sight stays above the display.
            def keep(progress: Progress) -> None:
                if progress.kind is ProgressKind.NOTE:
                    shown.console.print(progress.text, style="dim")

            status = _until_end(reader, every_s, view, keep, lambda _: shown.refresh())
        show_summary(out, summarize(reader.run))
        return status

    def print_line(progress: Progress) -> None:
        if line := line_of(view, progress):
            out.print(f"{info.name}: {line}", soft_wrap=True)

    status = _until_end(reader, every_s, view, print_line, lambda _: None)
    out.print(f"{info.name}: {status}; `rollart show {info.name}` has its figures", soft_wrap=True)
    return status


def _until_end(
    reader: "ActivityReader", every_s: float, view: ProgressView, show: OnProgress, look: _Look
) -> str:
    """Read the tables again and again until the run has ended; return its status."""
    from rollart_flow.store import RunStatus

    while True:
        status = reader.run.status  # before the rows, so that the last rows are read after it
        for progress in reader.read():
            row = progress.row
            at = row["committed_at"].timestamp() if row else time.time()
            view.take(progress, at)
            show(progress)
        view.activity = activity = reader.activity()
        view.phase = activity.trainer if status is RunStatus.RUNNING else str(status)
        look(activity)
        if status is not RunStatus.RUNNING:
            return str(status)
        time.sleep(every_s)


class _PrintChanges:
    """Prints one JSON object in a line for each look at which something has changed."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._last = ""

    def __call__(self, activity: "StageActivity") -> None:
        view = self._view
        said: dict[str, Any] = activity.as_json() | {
            "reward": view.reward,
            "rewards": view.rewards,
            "success": {domain: curve[-1] for domain, curve in view.success.items()},
            "staleness_max": view.staleness,
            "lag_max": view.lag,
            "left_s": view.left_s,
        }
        line = escape_controls(json.dumps(plain(said), ensure_ascii=False))
        if line != self._last:
            self._last = line
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
