"""`make paper`: the figures of ROLLART and ROLL Flash, simulated, beside the published numbers.

It prints a table and writes `paper.json` into the current folder: one row for each figure, the row
of `rollart simulate --json` with the name of the figure, the published range and, where ours
differs, why. With several seeds a number is their mean, with an interval. `--fit` fits the
parameters to absolute numbers instead, and prints fitted and predicted numbers apart. `--map` shows
where a mechanism pays, over a grid. Results of simulations stay in `build/paper`, so that each of
these goes on where it was interrupted. The exit code is 0, 2 if the arguments are wrong, or 130
after an interrupt.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rollart_flow.cli.comparison import as_object
from rollart_flow.cli.output import console, duration, fail, plain
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import Estimate, Figure, Finished, estimate
from tests.benchmarks.paper.fit_report import report_fit
from tests.benchmarks.paper.fitting import is_fitted
from tests.benchmarks.paper.kept import KEPT, run_figures
from tests.benchmarks.paper.maps.report import report_map
from tests.benchmarks.paper.parameters import ASSUMED, Parameters, stored_fit
from tests.benchmarks.paper.published import LEFT_OUT, figures

RESULT = Path("paper.json")
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Simulate the figures that the arguments name; the exit code."""
    chosen = _parser().parse_args(arguments)
    if chosen.fit:
        return _fit(chosen.jobs, chosen.kept)
    parameters = stored_fit() if chosen.parameters == "fitted" else ASSUMED
    if chosen.map is not None:
        simulate = partial(_simulate, jobs=chosen.jobs, folder=chosen.kept)
        try:
            return report_map(chosen.map, chosen.size, parameters, simulate)
        except KeyboardInterrupt:
            return fail("interrupted; again to go on, or SIZE= for fewer cells", INTERRUPTED)
    seeds = range(chosen.seed, chosen.seed + max(1, chosen.seeds))
    try:
        named = figures_named(chosen.only, parameters)
        wanted = [[figure.seeded(seed) for seed in seeds] for figure in named]
    except SettingsError as error:
        return fail(str(error), 2)
    began = time.monotonic()
    try:
        runs = _simulate(
            [figure for seeded in wanted for figure in seeded], chosen.jobs, chosen.kept
        )
    except KeyboardInterrupt:
        return fail("interrupted; again to go on, or ONLY= for fewer figures", INTERRUPTED)
    fit = chosen.parameters == "fitted"
    rows = [_as_object(seeded, runs) | {"basis": _basis(seeded[0], fit)} for seeded in wanted]
    RESULT.write_text(json.dumps(plain(rows), ensure_ascii=False, indent=2) + "\n")
    out = console()
    out.print(_table(wanted, runs))
    for line in _counts(rows):
        out.print(line)
    for why, names in _reasons(wanted, runs).items():
        out.print(f"{', '.join(names)}: {why}.", style="dim")
    if not chosen.only:
        for what, why in LEFT_OUT.items():
            out.print(f"left out: {what}: {why}.", style="dim")
    seconds = duration(time.monotonic() - began)
    out.print(f"{len(runs)} simulations in {seconds}; the rows are in {RESULT}", style="dim")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.paper")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT",
        help="figures whose name contains this text, e.g. 'Figure 10a'",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the attempts")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="so many seeds from it")
    parser.add_argument(
        "--parameters", choices=("assumed", "fitted"), default="assumed",
        help="lengths, latencies and costs of engines",
    )  # fmt: skip
    parser.add_argument(
        "--fit", action="store_true", help="fit them to absolute numbers, and store them"
    )
    parser.add_argument(
        "--map", metavar="NAME", help="where a mechanism pays, in place of the figures"
    )
    parser.add_argument(
        "--size", type=int, default=2, metavar="N", help="values for each axis of a map"
    )
    parser.add_argument(
        "--kept", type=Path, default=KEPT, metavar="FOLDER",
        help=f"results of simulations, which are not run again ({KEPT})",
    )  # fmt: skip
    return parser


def _fit(jobs: int, folder: Path) -> int:
    try:
        return report_fit(jobs, folder)
    except KeyboardInterrupt:
        return fail("interrupted; again to go on", INTERRUPTED)


def figures_named(texts: Sequence[str], parameters: Parameters = ASSUMED) -> Sequence[Figure]:
    """The figures whose name contains one of the texts; all figures without texts.

    Raises:
        SettingsError: no figure's name contains one of them.
    """
    everything = figures(parameters)
    for text in texts:
        if not any(text in figure.name for figure in everything):
            raise SettingsError(f"ONLY={text}: no figure has this text in its name")
    return [f for f in everything if not texts or any(text in f.name for text in texts)]


def _simulate(wanted: Sequence[Figure], jobs: int, folder: Path) -> dict[Case, Finished]:
    """Run every case of the figures; a terminal shows a bar with the time left."""
    out = console()
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("")

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return run_figures(wanted, jobs=jobs, folder=folder, on_case=advance)


def _value(seeded: Sequence[Figure], runs: dict[Case, Finished]) -> Estimate:
    return estimate([figure.value(runs) for figure in seeded])


def _as_object(seeded: Sequence[Figure], runs: dict[Case, Finished]) -> dict[str, Any]:
    figure, value = seeded[0], _value(seeded, runs)
    row = as_object(runs[figure.ours].row, ratio=value.mean, published=figure.nearest(value.mean))
    extra = {
        "figure": figure.name,
        "published_range": figure.span,
        "seeds": len(seeded),
        "interval": (value.low, value.high),
        "agrees": None if figure.published is None else figure.agrees(value.mean),
    }
    return row | extra | {"why": None if figure.agrees(value.mean) else figure.why}


def _basis(figure: Figure, fit: bool) -> str:
    """Whether a figure is fitted, predicted by the fit, or simulated with what is assumed."""
    if not fit:
        return "assumed"
    return "fitted" if is_fitted(figure.name) else "predicted"


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many of the published figures agree, by what they are based on, of how many there are."""
    judged: dict[str, list[bool]] = {}
    for row in rows:
        if row["agrees"] is not None:
            judged.setdefault(row["basis"], []).append(row["agrees"])
    told = [f"{basis}: {sum(good)} of {len(good)} within 15%" for basis, good in judged.items()]
    run = sum(map(len, judged.values()))
    there = sum(figure.published is not None for figure in figures())
    return [*told, f"{run} of {there} published figures were simulated"]


def _table(wanted: Sequence[Sequence[Figure]], runs: dict[Case, Finished]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("figure")
    for heading in ("ours", "published", "", "step\n[s]", "bound\n[s]"):
        table.add_column(heading, justify="right")
    for seeded in wanted:
        figure, value = seeded[0], _value(seeded, runs)
        report = runs[figure.ours].row.report
        half = f" ±{value.high - value.mean:.2f}" if len(seeded) > 1 else ""
        table.add_row(
            figure.name,
            f"{value.mean:.2f}{half}",
            figure.printed,
            "" if figure.agrees(value.mean) else "differs",
            f"{report.step_s:.0f}",
            f"{report.bound.step_s:.0f}",
        )
    return table


def _reasons(
    wanted: Sequence[Sequence[Figure]], runs: dict[Case, Finished]
) -> dict[str, list[str]]:
    """Explanations of the differences, each with the names of its figures."""
    reasons: dict[str, list[str]] = {}
    for seeded in wanted:
        figure = seeded[0]
        if not figure.agrees(_value(seeded, runs).mean):
            names = reasons.setdefault(figure.why, [])
            if (name := figure.name.partition(":")[0]) not in names:
                names.append(name)
    return reasons


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
