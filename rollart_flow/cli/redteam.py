"""`rollart redteam`: which rewarded trajectories of a run to look at before trusting its reward."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.arguments import AsJson, RunName, Store
from rollart_flow.cli.output import console, print_json
from rollart_flow.cli.summary import handle

if TYPE_CHECKING:
    from rollart_flow.analysis.redteam import RedTeamReport, Suspect

_NUMBERS = ("step", "version", "reward")


def redteam(
    run: RunName,
    top: Annotated[int, typer.Option(min=1, help="Trajectories to show at most.")] = 20,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List trajectories with a high reward and a suspicious shape."""
    from rollart_flow.analysis.redteam import red_team
    from rollart_flow.store import open_run

    opened = open_run(run, store=store)
    report = red_team(opened, top)
    if as_json:
        print_json(report)
        return
    console().print(render(report, handle(opened)))


def render(report: "RedTeamReport", run: str) -> RenderableType:
    """The report as people read it; `run` is what the run is called on the command line."""
    scored = f"{report.suspicious} of {report.scored} scored trajectories are suspicious"
    if not report.trajectories:
        return Text(scored)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("trajectory", "domain", *_NUMBERS, "rules that fired"):
        table.add_column(
            heading, justify="right" if heading in _NUMBERS else "left", overflow="fold"
        )
    for suspect in report.trajectories:
        table.add_row(*_cells(suspect))
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
    return [
        suspect.trajectory_id,
        suspect.domain,
        "-" if step is None else str(step),
        "-" if version is None else str(version),
        f"{suspect.reward:.3g}",
        "\n".join(fired),
    ]


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
