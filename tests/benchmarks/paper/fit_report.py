"""The tables of a fit: what was fitted, what that predicts, and what it predicts when left out."""

from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.table import Table

from rollart_flow.cli.output import console
from tests.benchmarks.paper.figures import TOLERANCE
from tests.benchmarks.paper.fitting import FAMILIES, Oracle, fit, left_out, published, store


def report_fit(jobs: int, folder: Path | None = None) -> int:
    """Fit the parameters, store them, and print fitted and predicted numbers apart; 0."""
    oracle, out = Oracle(jobs, folder), console()
    values = fit(oracle)
    for name, value in values.items():
        out.print(f"{name} = {value:.4g}")
    seen = published()
    found = oracle.predict(values, list(seen))
    chosen = {key for family in FAMILIES for key in family.keys}
    for title, keys in (
        ("fitted", [key for key in seen if key in chosen]),
        ("predicted", [key for key in seen if key not in chosen]),
    ):
        out.print(_table(title, {key: (found[key], seen[key].value) for key in keys}))
    found_without = left_out(oracle, values)
    store(values, found_without)
    for place, without in found_without.items():
        kind = "" if without.refitted else ", with its knobs where a search begins"
        title = f"{place} left out{kind}: off by a factor of {1 + without.error:.2f}"
        out.print(_table(title, without.numbers))
    return 0


def _table(title: str, pairs: Mapping[str, tuple[float, float]]) -> Table:
    """Ours beside the published numbers."""
    good = sum(abs(ours / theirs - 1) <= TOLERANCE for ours, theirs in pairs.values())
    table = Table(title=f"{title}: {good} of {len(pairs)} within 15%", box=box.SIMPLE_HEAD)
    for heading in ("number", "ours", "published", ""):
        table.add_column(heading, justify="left" if heading == "number" else "right")
    for key, (ours, theirs) in pairs.items():
        seen = published()[key]
        name = f"{seen.paper}, {seen.place}: {seen.quantity}"
        verdict = "" if abs(ours / theirs - 1) <= TOLERANCE else "differs"
        table.add_row(name, f"{ours:.4g}", f"{theirs:.4g}", verdict)
    return table
