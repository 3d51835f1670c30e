"""`make paper MAP=NAME`: the map of a mechanism as a table in the terminal, and as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import console, fail, plain
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import Figure, Finished
from tests.benchmarks.paper.maps.grid import Cell, cells, condition, grid, reaches
from tests.benchmarks.paper.maps.mechanisms import MECHANISMS, Mechanism
from tests.benchmarks.paper.parameters import Parameters
from tests.benchmarks.paper.scenarios import Scenarios

Simulate = Callable[[Sequence[Figure]], Mapping[Case, Finished]]


def report_map(name: str, size: int, parameters: Parameters, simulate: Simulate) -> int:
    """Simulate a map, print it and write `map_NAME.json`; the exit code."""
    if name not in MECHANISMS:
        return fail(f"MAP={name}: no such mechanism; there are {', '.join(MECHANISMS)}", 2)
    if size < 1:
        return fail(f"SIZE={size}: a map has at least one value for each axis", 2)
    mechanism = MECHANISMS[name]
    figures = grid(mechanism, Scenarios(parameters), size)
    found = cells(figures, simulate(list(figures.values())))
    published = next(iter(figures.values())).published or (1.0, 1.0)
    said = condition(found, published)
    rows = [
        asdict(cell.place) | {"gain": cell.gain, "reaches": reaches(cell, published)}
        for cell in found
    ]
    whole = {
        "mechanism": name,
        "figure": mechanism.figure,
        "published": published,
        "hardware_is": mechanism.hardware_is,
        "point": asdict(found[0].place),
        "condition": said,
        "cells": rows,
    }
    path = Path(f"map_{name}.json")
    path.write_text(json.dumps(plain(whole), ensure_ascii=False, indent=2) + "\n")
    out = console()
    out.print(_table(mechanism, found, published))
    out.print(f"{name}: {said}.")
    out.print(f"{len(found)} cells; they are in {path}", style="dim")
    return 0


def _table(mechanism: Mechanism, found: Sequence[Cell], published: tuple[float, float]) -> Table:
    """Rows for lengths and spread, columns for hardware and batch; the paper's point in brackets,
    the published gain in bold."""
    columns = sorted({(cell.place.hardware, cell.place.batch) for cell in found})
    at = {(c.place.lengths, c.place.variance, c.place.hardware, c.place.batch): c for c in found}
    title = f"{mechanism.figure}\ncolumns: {mechanism.hardware_is}, and the batch by a factor"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title)
    table.add_column("lengths")
    table.add_column("variance")
    for hardware, batch in columns:
        table.add_column(f"{hardware}\nx{batch:g}", justify="right")
    for lengths, variance in sorted({(c.place.lengths, c.place.variance) for c in found}):
        row = [_shown(at[lengths, variance, *column], found[0], published) for column in columns]
        table.add_row(f"x{lengths:g}", f"x{variance:g}", *row)
    return table


def _shown(cell: Cell, here: Cell, published: tuple[float, float]) -> Text:
    text = f"[{cell.gain:.2f}]" if cell is here else f"{cell.gain:.2f}"
    style = "bold green" if reaches(cell, published) else "red" if cell.gain < 1 else ""
    return Text(text, style)
