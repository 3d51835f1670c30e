"""`rollart runs`, `show`, `query` and `redteam`: commands that read stored runs."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, grid, print_json
from rollart_flow.errors import SchemaError, StoreError
from rollart_flow.text import counted

if TYPE_CHECKING:
    from rollart_flow.analysis.redteam import RedTeamReport, Suspect
    from rollart_flow.store import Run

_DAMAGED = "damaged"
"""Status of a run that cannot be read."""
_NUMBERS = "step version reward"
"""Columns of a report with numbers, aligned to the right."""


def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs of a store, oldest first; then those that cannot be read."""
    from rollart_flow.store import store_uri
    from rollart_flow.store.files import join
    from rollart_flow.store.layout import run_names

    root = store_uri(store)
    described = (_described(name, join(root, name)) for name in run_names(store))
    found = [run for _, run in sorted(described, key=lambda each: each[0])]
    if as_json:
        print_json(found)
        return
    if not found:
        console().print(f"no runs in {store_uri(store)}; `rollart run FILE` makes one")
        return
    columns = ("name", "status", "steps", "uri")
    console().print(grid(columns, ((str(run[column]) for column in columns) for run in found)))
    for run in found:
        if "error" in run:
            console().print(f"{run['name']}: {run['error']}", soft_wrap=True)


def _described(name: str, uri: str) -> tuple[tuple[bool, str, str], dict[str, object]]:
    """Return a run's place in the list, and what the list says of it."""
    import polars as pl

    from rollart_flow.store import open_run

    try:
        run = open_run(uri)
        steps = run.steps.select(pl.col("step").max()).collect().item() or 0
        info = run.info
    except (StoreError, SchemaError) as error:
        row: dict[str, object] = {"name": name, "uri": uri, "status": _DAMAGED, "steps": 0}
        return (True, "", uri), row | {"error": str(error)}
    row = {"name": info.name, "uri": uri, "status": info.status, "steps": steps}
    return (False, info.created_at.isoformat(), uri), row


def show(
    run: RunName,
    trajectory: Annotated[
        str | None,
        typer.Option(
            help="Show one trajectory; the beginning of its id is enough. One that was drawn from "
            "another run has the name of that run and a slash before it."
        ),
    ] = None,
    waits: Annotated[
        bool, typer.Option("--waits", help="Show what each process of a running run waits for.")
    ] = False,
    accounting: Annotated[
        bool,
        typer.Option("--accounting", help="Show what tokens, seconds and resources went into."),
    ] = False,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=PRICE",
            help="Price of an hour of one device, beside --accounting; the pipeline's otherwise.",
        ),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the figures of a run, or one of its trajectories as a transcript."""
    from rollart_flow.store import open_run, resolve

    if waits:
        from rollart_flow.cli.waits import show_waits

        show_waits(resolve(run, store), as_json)
        return
    opened = open_run(run, store=store)
    if accounting or price:
        from rollart_flow.cli.accounting import show_accounting

        show_accounting(opened, price or [], as_json)
        return
    if trajectory is None:
        _show_summary(opened, as_json)
    else:
        _show_trajectory(opened, trajectory, as_json)


def _show_summary(run: "Run", as_json: bool) -> None:
    from rollart_flow.cli.summary import summarize
    from rollart_flow.cli.summary_view import show_summary
    from rollart_flow.store.damage import reading

    with reading(run.uri):
        summary = summarize(run)
    if as_json:
        print_json(summary.as_json())
    else:
        show_summary(console(), summary)


def _show_trajectory(run: "Run", beginning: str, as_json: bool) -> None:
    """Show the trajectory whose id begins so."""
    from rollart_flow.analysis.spelling import speller
    from rollart_flow.cli.drawn import read_shown
    from rollart_flow.cli.transcript import render_trajectory
    from rollart_flow.store.damage import reading

    with reading(run.uri):
        row = read_shown(run, beginning)
    if as_json:
        print_json(row)
    else:
        console().print(render_trajectory(row, speller(run.uri)))


def query(
    run: RunName,
    sql: Annotated[str, typer.Argument(help="SQL over the tables of the run.")],
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Only trajectories that a filter keeps: varied, 'length(256)', or 'reward > 0'.",
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(min=0, metavar="SEQ", help="Only rows up to a seq: the run as it was then."),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL over trajectories, batches, steps, weights, events, bindings and evaluations."""
    from rollart_flow.algorithms.filters import filter_of
    from rollart_flow.cli.rows import render_rows
    from rollart_flow.store import open_run
    from rollart_flow.store.damage import reading

    where = [filter_of(text) for text in filters or ()]
    opened = open_run(run, store=store)
    if at is not None:
        opened = opened.as_of(seq=at)
    with reading(opened.uri):
        rows = opened.sql(sql, where=where)
    if as_json:
        print_json(rows.to_dicts())
        return
    print(render_rows(rows))


def redteam(
    run: RunName,
    top: Annotated[int, typer.Option(min=1, help="Trajectories to show at most.")] = 20,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List trajectories with a high reward and a suspicious shape."""
    from rollart_flow.analysis.redteam import red_team
    from rollart_flow.cli.summary import handle
    from rollart_flow.store import open_run
    from rollart_flow.store.damage import reading

    opened = open_run(run, store=store)
    with reading(opened.uri):
        report = red_team(opened, top)
    if as_json:
        print_json(report)
        return
    console().print(render_report(report, handle(opened)))


def render_report(report: "RedTeamReport", run: str) -> RenderableType:
    """The report as a table; `run` is the run's name on the command line."""
    scored = f"{report.suspicious} of {report.scored} scored trajectories are suspicious"
    for each in report.noticed:
        scored += (
            f"\nnoticed {each.kind}: {counted(each.attempts, 'attempt')}, {each.rewarded} rewarded"
        )
    if not report.trajectories:
        return Text(scored)
    headings = ("trajectory", "domain", *_NUMBERS.split(), "rules that fired")
    table = grid(headings, map(_cells, report.trajectories), right=_NUMBERS)
    why = [f"{rule.name} ({rule.trajectories}): {rule.why}" for rule in report.rules]
    fired = [line for line, rule in zip(why, report.rules, strict=True) if rule.trajectories]
    first = report.trajectories[0].trajectory_id
    following = f"  rollart show {run} --trajectory {first}"
    return Group(scored, table, Text("\n".join(fired), style="dim"), "", "look at one", following)


def _cells(suspect: "Suspect") -> list[str]:
    version, step = suspect.policy_version, suspect.step
    fired = [
        f"{rule}: " + ", ".join(f"{name} {_figure(value)}" for name, value in figures.items())
        for rule, figures in suspect.fired.items()
    ]
    numbers = ("-" if number is None else str(number) for number in (step, version))
    fired += [f"noticed {text}" for text in suspect.suspicions]
    reward = f"{suspect.reward:.3g}"
    return [suspect.trajectory_id, suspect.domain, *numbers, reward, "\n".join(fired)]


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
