"""`rollart tasks check`: known solutions show which tasks may be trained on."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.arguments import AsJson, Store
from rollart_flow.cli.output import Interrupted, console, duration, grid, live, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.checking.quality import StatementJudge
    from rollart_flow.checking.recorded_checks import RecordedChecks

COLUMNS = ("task_id", "gold", "noop", "cheat", "flaky", "seconds", "admitted", "reason")
_SHOWN = 50
"""Number of rows that a table for people has at most; those that are not admitted come first."""

Where = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE|FOLDER",
        help="A pipeline file, a folder of tasks, or a domain such as 'frozenlake(size=5)'.",
    ),
]
DomainName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Check the tasks of this domain only.")
]
Limit = Annotated[
    int, typer.Option(min=1, metavar="N", help="Tasks of each domain to check at most.")
]
Repeat = Annotated[int, typer.Option(min=1, metavar="N", help="How often each solution is played.")]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Tasks at a time; one for each core.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Check also what has not changed since its check.")
]
JudgeUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Chat completions of a judge that scores statements."),
]
JudgeModel = Annotated[str, typer.Option(metavar="NAME", help="Model of the judge.")]
JudgeKey = Annotated[
    str, typer.Option(metavar="VARIABLE", help="Environment variable with the judge's key.")
]
LeastQuality = Annotated[
    float, typer.Option(min=0, max=1, help="Least score of an admitted statement.")
]

tasks_app = typer.Typer(help="Tasks before they are trained on.", no_args_is_help=True)


@tasks_app.callback()
def _commands() -> None:
    """Tasks before they are trained on."""


@tasks_app.command("check")
def check(
    where: Where,
    domain: DomainName = None,
    limit: Limit = 1000,
    repeat: Repeat = 2,
    workers: Workers = None,
    again: Again = False,
    judge: JudgeUrl = None,
    judge_model: JudgeModel = "",
    judge_key: JudgeKey = "",
    least_quality: LeastQuality = 0.5,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Play known solutions, nothing and cheats; exit code 1 if a task is not admitted."""
    from rollart_flow.checking.recorded_checks import RecordedChecks
    from rollart_flow.checking.sources import check_source
    from rollart_flow.checking.task_checks import CheckSettings
    from rollart_flow.store.admissions import AdmissionTable

    source = check_source(where)
    tasks = list(source.tasks(domain, limit))
    if not tasks:
        raise SettingsError(f"{where} has no task to check")
    settings = CheckSettings(
        repeat=repeat, workers=workers or os.cpu_count() or 1, timeout_s=source.timeout_s,
        source=source.source, quality=_judge(judge, judge_model, judge_key),
        least_quality=least_quality,
    )  # fmt: skip
    checks = RecordedChecks(tasks, AdmissionTable(store), settings, again=again)
    rows = _checked(checks, quiet=as_json)
    if as_json:
        print_json([{name: row[name] for name in COLUMNS} for row in rows])
    else:
        _show(rows, len(checks.known))
    if not all(row["admitted"] for row in rows):
        raise typer.Exit(1)


def _judge(url: str | None, model: str, key_variable: str) -> "StatementJudge | None":
    if url is None:
        if model or key_variable:
            raise SettingsError("--judge-model and --judge-key are for a judge; give --judge URL")
        return None
    from rollart_flow.checking.quality import statement_judge

    return statement_judge(url, model, key_variable)


def _checked(checks: "RecordedChecks", *, quiet: bool) -> list[dict[str, Any]]:
    """Check what is to be checked, and return the rows of all tasks in the order of their ids."""
    rows = list(checks.known)
    total = len(rows) + len(checks.todo)

    async def check_all(show: Callable[[int, int], None]) -> None:
        async for row in checks.rows():
            rows.append(row)
            show(len(rows) - len(checks.known), sum(not each["admitted"] for each in rows))

    with _showing(len(checks.todo), quiet=quiet) as show:
        try:
            asyncio.run(check_all(show))
        except KeyboardInterrupt:
            said = (
                f"interrupted; {len(rows)} of {total} tasks are checked; the same command goes on"
            )
            raise Interrupted(said) from None
    return sorted(rows, key=lambda row: (row["domain"], row["task_id"]))


@contextmanager
def _showing(total: int, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show how many tasks are done, in a terminal."""
    out = console()
    if quiet or not out.is_terminal or not total:
        yield lambda done, refused: None
        return
    state = {"done": 0, "refused": 0}
    began = time.monotonic()

    def render(elapsed_s: float) -> Table:
        done = state["done"]
        left = f", {duration((total - done) * elapsed_s / done)} left" if done else ""
        line = Table.grid(padding=(0, 1))
        refused = f", {state['refused']} not admitted" if state["refused"] else ""
        bar = ProgressBar(total=total, completed=done, width=30)
        line.add_row(bar, Text(f"{done} of {total} tasks{refused}{left}"))
        return line

    with live(lambda _: render(time.monotonic() - began), out):
        yield lambda done, refused: state.update(done=done, refused=refused)


def _show(rows: Sequence[dict[str, Any]], known: int) -> None:
    out = console()
    shown = sorted(rows, key=lambda row: bool(row["admitted"]))[:_SHOWN]
    out.print(grid(COLUMNS, (list(map(_cell, COLUMNS, _values(row))) for row in shown), "seconds"))
    if len(shown) < len(rows):
        out.print(f"and {len(rows) - len(shown)} more, all in --json", style="dim")
    admitted = sum(row["admitted"] for row in rows)
    before = f", {known} of them checked before" if known else ""
    out.print(f"{admitted} of {len(rows)} tasks are admitted{before}")


def _values(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in COLUMNS]


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-" if column != "reason" else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if column == "seconds" else str(value)
