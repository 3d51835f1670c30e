"""`rollart simulate`: compares schedules on a model of the hardware, before paying for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from rollart_flow.cli.arguments import AsJson, Store
from rollart_flow.cli.output import Interrupted, console, print_json
from rollart_flow.errors import SettingsError

if TYPE_CHECKING:
    from rollart_flow.simulation.report.comparison import Case, Row
    from rollart_flow.simulation.report.gantt import Timeline


class WithScenarios(TyperCommand):
    """A command whose help ends with the named scenarios.

    Typer does not export the types of contexts and formatters.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help if there are no words; a first word `compare` is the command's old name."""
        args = args[1:] if args[:1] == ["compare"] else args
        return super().parse_args(ctx, args or [*ctx.help_option_names[-1:]])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the names of the scenarios."""
        from rollart_flow.simulation.loading import SCENARIOS

        with formatter.section("Scenarios"):
            formatter.write_dl([(name, make.__doc__ or "") for name, make in SCENARIOS.items()])


Scenarios: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A named scenario, or a Python file with a module-level `scenario` or `scenarios`.",
    ),
]
Schedules: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        "-S",
        metavar="TEXT",
        help="A schedule, e.g. -S 'rollart(2)'; by default sync_plus, one_off, areal(1) and "
        "rollart(1), or the run's own.",
    ),
]
Seeds: TypeAlias = Annotated[
    list[int] | None,
    typer.Option("--seed", metavar="N", help="Seed of the attempts; 0 by default."),
]
Steps: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Training steps, of which the first are not measured; 5 by default, or the run's "
        "number.",
    ),
]
From: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="RUN", help="Predict a stored run from its own latencies and lengths."
    ),
]
Knob: TypeAlias = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="With --from: replaces the run's value.")
]
Plot: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Draw trajectories and phases over time.")
]
Details: TypeAlias = Annotated[
    bool, typer.Option("--details", help="Show bubbles, waste and bounds of every row.")
]


def simulate(
    scenarios: Scenarios = None,
    schedules: Schedules = None,
    seeds: Seeds = None,
    steps: Steps = None,
    run: From = None,
    store: Store = None,
    redundancy: Knob = None,
    engines: Knob = None,
    environments: Knob = None,
    batch_size: Knob = None,
    plot: Plot = None,
    details: Details = False,
    as_json: AsJson = False,
) -> None:
    """Compare schedules on scenarios, or on a stored run, before paying for hardware."""
    from rollart_flow.control.schedule.schedules import named_schedule
    from rollart_flow.simulation.loading import load_scenarios
    from rollart_flow.simulation.report.comparison import DEFAULT_SCHEDULES, cases

    _check_plot(plot)
    changes = {
        "redundancy": redundancy, "engines": engines, "environments": environments,
        "batch-size": batch_size,
    }  # fmt: skip
    _check_source(scenarios, run, [name for name, value in changes.items() if value is not None])
    asked = [named_schedule(text) for text in schedules or ()]
    measured: str | None = None
    if run is None:
        found = [one for word in scenarios or () for one in load_scenarios(word)]
        asked = asked or [named_schedule(text) for text in DEFAULT_SCHEDULES]
        todo = cases(found, asked, seeds or [0], steps or 5)
    else:
        from rollart_flow.simulation.stored.recorded import recorded_scenario
        from rollart_flow.store import open_run

        recorded = recorded_scenario(open_run(run, store=store))
        measured = f"measured: {recorded.measured_step_s:.2f} s under {recorded.schedule.name}"
        changed = recorded.changed(
            redundancy=redundancy, engines=engines, environments=environments, batch_size=batch_size
        )
        asked = asked or [recorded.schedule]
        todo = cases([changed.scenario], asked, seeds or [0], steps or recorded.steps)
    _run_all(todo, measured, plot, details=details, as_json=as_json)


def _check_source(scenarios: list[str] | None, run: str | None, changed: list[str]) -> None:
    """Refuse arguments that name neither scenarios nor a run, or both."""
    if not scenarios and run is None:
        raise SettingsError("nothing to simulate: name a scenario, or a run with --from RUN")
    if scenarios and run is not None:
        raise SettingsError(f"--from {run} takes the place of a scenario; leave {scenarios[0]} out")
    if changed and run is None:
        raise SettingsError(
            f"--{changed[0]} changes a run, with --from RUN; a scenario has its own"
        )


def _check_plot(plot: Path | None) -> None:
    """Refuse a picture that could not be written, before anything is simulated."""
    if plot is None:
        return
    if plot.suffix.lower() != ".svg":
        raise SettingsError(f"--plot {plot}: pictures are SVG only; end the name with .svg")
    if not plot.parent.is_dir():
        raise SettingsError(f"--plot {plot}: there is no folder {plot.parent}")


def _run_all(
    cases: "list[Case]", measured: str | None, plot: Path | None, *, details: bool, as_json: bool
) -> None:
    """Run all cases one after the other, and show them, also after an interrupt or a failure."""
    from rollart_flow.cli.comparison import showing_cases
    from rollart_flow.simulation.report.comparison import measure, simulate_case
    from rollart_flow.simulation.report.gantt import timeline

    rows: list[Row] = []
    timelines: list[Timeline] = []
    try:
        with showing_cases(len(cases), cases[0].steps, quiet=as_json) as on_start:
            for case in cases:
                record = simulate_case(case, on_start)
                rows.append(measure(case, record))
                if plot is not None:
                    timelines.append(timeline(case.title, record))
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {len(rows)} of {len(cases)} were simulated") from None
    finally:
        if rows:
            _show(rows, details, as_json)
        if measured is not None and not as_json:
            console().print(measured)
        if plot is not None and timelines:
            _draw(plot, timelines, as_json)


def _show(rows: "list[Row]", details: bool, as_json: bool) -> None:
    from rollart_flow.cli.comparison import as_object, render_details, render_rows

    if as_json:
        print_json([as_object(row) for row in rows])
        return
    out = console()
    out.print(render_rows(rows))
    if details or len(rows) == 1:
        for row in rows:
            out.print(render_details(row))


def _draw(plot: Path, timelines: "list[Timeline]", as_json: bool) -> None:
    from rollart_flow.simulation.report.gantt import render

    try:
        plot.write_text(render(timelines), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--plot {plot}: cannot be written: {error.strerror}") from error
    if not as_json:
        console().print(f"drawn in {plot}", soft_wrap=True)
