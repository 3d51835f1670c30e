"""`rollart runs`, `show`, `query`, `redteam` and `replay`: commands that read stored runs."""

import shutil
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, escape_controls, grid, print_json
from rollart_flow.cli.trusting import Trust, check_trusted
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.analysis.redteam import RedTeamReport, Suspect
    from rollart_flow.replay import StepReplay, TrajectoryReplay

_NUMBERS = "step version reward"
"""Columns of a report with numbers, aligned to the right."""


def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs of a store, oldest first."""
    import polars as pl

    from rollart_flow.store import list_runs, open_run, store_uri

    found = []
    for uri, info in list_runs(store):
        steps = open_run(uri).steps.select(pl.col("step").max()).collect().item() or 0
        found.append({"name": info.name, "uri": uri, "status": info.status, "steps": steps})
    if as_json:
        print_json(found)
        return
    if not found:
        console().print(f"no runs in {store_uri(store)}; `rollart run FILE` makes one")
        return
    columns = ("name", "status", "steps", "uri")
    console().print(grid(columns, ((str(run[column]) for column in columns) for run in found)))


def show(
    run: RunName,
    trajectory: Annotated[
        str | None, typer.Option(help="Show one trajectory; the beginning of its id is enough.")
    ] = None,
    waits: Annotated[
        bool, typer.Option("--waits", help="Show what each process of a running run waits for.")
    ] = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the figures of a run, or one of its trajectories as a transcript."""
    from rollart_flow.store import open_run, resolve
    from rollart_flow.store.damage import reading

    if waits:
        from rollart_flow.cli.waits import show_waits

        show_waits(resolve(run, store), as_json)
        return
    opened = open_run(run, store=store)
    if trajectory is None:
        from rollart_flow.cli.summary import show_summary, summarize

        with reading(opened.uri):
            summary = summarize(opened)
        if as_json:
            print_json(summary.as_json())
        else:
            show_summary(console(), summary)
        return
    from rollart_flow.cli import transcript

    with reading(opened.uri):
        row = transcript.read_trajectory(opened, transcript.find_trajectory(opened, trajectory))
    if as_json:
        print_json(row)
    else:
        console().print(transcript.render_trajectory(row, transcript.speller(opened)))


def query(
    run: RunName,
    sql: Annotated[str, typer.Argument(help="SQL over the tables of the run.")],
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME",
            help="Only trajectories that a filter keeps, such as varied or 'length(256)'.",
        ),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Run SQL over trajectories, batches, steps, weights, events, bindings and evaluations."""
    import polars as pl

    from rollart_flow.algorithms.filters import named_filter
    from rollart_flow.store import open_run
    from rollart_flow.store.damage import reading

    where = [named_filter(text) for text in filters or ()]
    opened = open_run(run, store=store)
    with reading(opened.uri):
        rows = opened.sql(sql, where=where)
    if as_json:
        print_json(rows.to_dicts())
        return
    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        fmt_str_lengths=80,
        tbl_width_chars=max(shutil.get_terminal_size().columns, 80),
        tbl_hide_column_data_types=True,
        tbl_hide_dataframe_shape=True,
    ):
        print(escape_controls(str(rows)))


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
    reward = f"{suspect.reward:.3g}"
    return [suspect.trajectory_id, suspect.domain, *numbers, reward, "\n".join(fired)]


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def replay(
    run: RunName,
    step: Annotated[int | None, typer.Option(min=1, help="Training step to recompute.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Trajectory to re-run; the beginning of its id is enough.")
    ] = None,
    trust: Trust = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a step or re-run a trajectory; exit code 1 if anything differs."""
    from rollart_flow.store import open_run

    if (step is None) == (trajectory is None):
        raise SettingsError("replay takes either --step N or --trajectory ID")
    stored = open_run(run, store=store)
    check_trusted(stored.uri, trust)
    if step is not None:
        from rollart_flow.replay import replay_step

        equal = _show_step(replay_step(stored.uri, step), as_json)
    if trajectory is not None:
        from rollart_flow.cli.transcript import find_trajectory

        trajectory_id = find_trajectory(stored, trajectory)
        from rollart_flow.replay import replay_trajectory

        equal = _show_trajectory(replay_trajectory(stored.uri, trajectory_id), as_json)
    if not equal:
        raise typer.Exit(1)


def _show_step(replayed: "StepReplay", as_json: bool) -> bool:
    if as_json:
        names = ("step", "equal", "recorded", "recomputed", "difference")
        print_json({name: getattr(replayed, name) for name in names})
        return replayed.equal
    out = console()
    for name, recorded in replayed.recorded.items():
        recomputed = replayed.recomputed[name]
        mark = "=" if recorded == recomputed else "differs from"
        out.print(f"  {name:12} {recorded!r} {mark} {recomputed!r}", soft_wrap=True)
    if replayed.equal:
        out.print(f"step {replayed.step}: equal to the last bit")
    else:
        out.print(f"step {replayed.step}: differs: {replayed.difference}", soft_wrap=True)
    return replayed.equal


def _show_trajectory(replayed: "TrajectoryReplay", as_json: bool) -> bool:
    if as_json:
        names = ("trajectory_id", "equal", "divergence", "turns")
        print_json({name: getattr(replayed, name) for name in names})
    elif replayed.equal:
        turns = len(replayed.turns)
        console().print(f"trajectory {replayed.trajectory_id}: {turns} turns, all equal")
    else:
        said = f"trajectory {replayed.trajectory_id}: differs: {replayed.divergence}"
        console().print(said, soft_wrap=True)
    return replayed.equal
