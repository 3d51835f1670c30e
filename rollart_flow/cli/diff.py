"""`rollart diff RUN RUN`: settings, source and results of two runs, and where their steps part."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rollart_flow.cli.arguments import AsJson, Store
from rollart_flow.cli.completion import run_names_with
from rollart_flow.cli.output import console, duration, grid, print_json
from rollart_flow.errors import StoreError

if TYPE_CHECKING:
    import polars as pl

    from rollart_flow.store import Run, Snapshot

_STEP = ("fingerprint", "loss", "grad_norm", "reward_mean")
"""Columns of `steps` by which two steps are compared, the most telling first."""
_SECONDS = {"seconds"}


@dataclass(frozen=True)
class DifferingValue:
    """A value that two runs do not share; None where a run lacks it."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class RunDifferences:
    """The differences of two runs, and their results beside each other."""

    runs: tuple[str, str]
    settings: tuple[DifferingValue, ...]
    source: tuple[str, ...]
    """Lines of a unified diff of the two pipeline files."""
    results: tuple[DifferingValue, ...]
    """Results of both runs, whether or not they differ."""
    common_steps: int
    """Steps that both runs have."""
    first_step: int | None
    """First common step whose rows differ; None if no such step does."""
    step: tuple[DifferingValue, ...]
    """How that step differs."""


Other = Annotated[
    str,
    typer.Argument(metavar="OTHER", help="The run beside it.", autocompletion=run_names_with),
]
One = Annotated[str, typer.Argument(metavar="RUN", help="One run.", autocompletion=run_names_with)]


def diff(run: One, other: Other, store: Store = None, as_json: AsJson = False) -> None:
    """Compare two runs: settings, pipeline source, results, and the first step that differs."""
    from rollart_flow.store import open_run
    from rollart_flow.store.damage import reading

    first, second = open_run(run, store=store), open_run(other, store=store)
    with reading(first.uri), reading(second.uri):
        found = differences(first, second)
    if as_json:
        print_json(asdict(found))
    else:
        console().print(render(found))


def differences(first: "Run", second: "Run") -> RunDifferences:
    """Compare two runs, as they are now."""
    one, other = first.snapshot(), second.snapshot()
    steps = _steps(one).join(_steps(other), on="step", suffix="_other").sort("step")
    at = next((row for row in steps.iter_rows(named=True) if _differs(row)), None)
    return RunDifferences(
        runs=(first.info.name, second.info.name),
        settings=tuple(_different(_settings(first), _settings(second))),
        source=tuple(_source_diff(first, second)),
        results=_beside(_results(first, one), _results(second, other)),
        common_steps=steps.height,
        first_step=None if at is None else at["step"],
        step=() if at is None else tuple(_differences_of(at)),
    )


def _steps(tables: "Snapshot") -> "pl.DataFrame":
    return tables.steps.select("step", *_STEP).collect()


def _differences_of(row: Mapping[str, Any]) -> Iterator[DifferingValue]:
    for name in _STEP:
        if row[name] != row[f"{name}_other"]:
            yield DifferingValue(name, row[name], row[f"{name}_other"])


def _differs(row: Mapping[str, Any]) -> bool:
    return next(_differences_of(row), None) is not None


def _settings(run: "Run") -> dict[str, Any]:
    """Settings of a run by dotted name, with its seed."""
    info = run.info
    nodes = {"nodes": {}} | dict(info.settings)
    flat = dict(_flat("", {**nodes.pop("nodes"), **nodes}))
    return {**flat, "pipeline.seed": info.seed}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[DifferingValue]:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield DifferingValue(name, one.get(name), other.get(name))


def _beside(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[DifferingValue, ...]:
    names = dict.fromkeys((*one, *other))
    return tuple(DifferingValue(name, one.get(name), other.get(name)) for name in names)


def _source_diff(first: "Run", second: "Run") -> list[str]:
    one, other = _source(first).splitlines(), _source(second).splitlines()
    names = first.info.name, second.info.name
    return list(difflib.unified_diff(one, other, *names, lineterm="", n=1))


def _source(run: "Run") -> str:
    from rollart_flow.store.layout import read_pipeline

    try:
        return read_pipeline(run.uri)
    except StoreError:
        return ""


def _results(run: "Run", tables: "Snapshot") -> dict[str, Any]:
    """Return the results and the cost of a run, by the queries of its pages in the browser."""
    import polars as pl

    from rollart_flow.views.comparison import FIGURES
    from rollart_flow.views.overview import LATEST
    from rollart_flow.views.view import Page, ViewReader

    reader = ViewReader(tables)
    whole = reader.read(FIGURES).frame.row(0, named=True)
    latest = reader.read(LATEST, page=Page(rows=1)).frame
    last = latest.row(0, named=True) if latest.height else {}
    totals = {
        "steps": whole["steps"],
        "reward_last_step": last.get("reward_mean"),
        "loss_last_step": last.get("loss"),
        "seconds": whole["seconds"],
        "tokens_trained": whole["tokens"],
        "staleness_max": whole["staleness_max"],
        "lag_max": whole["lag_max"],
    }
    sampled = tables.trajectories.filter(pl.col("split") == "train").select(
        trajectories=pl.len(), tokens_sampled=pl.col("action_mask").list.sum().sum()
    )
    success = pl.col("metric").is_in(["success", "success_sampled"])
    scores = tables.evaluations.filter(success).sort("step").group_by("domain", "metric").last()
    named = scores.sort("domain", "metric").collect().iter_rows(named=True)
    return (
        {"status": str(run.info.status)}
        | {f"{row['domain']} {row['metric']}": row["value"] for row in named}
        | totals
        | sampled.collect().row(0, named=True)
    )


def render(found: RunDifferences) -> RenderableType:
    """Render the comparison as tables and a diff."""
    heads = ("", *found.runs)
    parts: list[RenderableType] = [_titled("results", heads, found.results)]
    if found.settings:
        parts.append(_titled("settings that differ", heads, found.settings))
    else:
        parts.append(Text("settings: equal"))
    source = (
        ("pipeline files differ", *found.source) if found.source else ("pipeline files: equal",)
    )
    parts.append(Text("\n".join(source)))
    parts.append(Text(_said_of_steps(found), style="bold"))
    if found.step:
        parts.append(_titled("", heads, found.step))
    return Group(*parts)


def _said_of_steps(found: RunDifferences) -> str:
    if not found.common_steps:
        return "no step that both runs have"
    if found.first_step is None:
        return f"all {found.common_steps} steps that both runs have are equal"
    return f"first step that differs: {found.first_step} of {found.common_steps} in both runs"


def _titled(
    title: str, heads: tuple[str, ...], differing: tuple[DifferingValue, ...]
) -> RenderableType:
    rows = (
        [each.name, _shown(each.name, each.first), _shown(each.name, each.second)]
        for each in differing
    )
    table = grid(heads, rows)
    table.title, table.title_justify = title or None, "left"
    return table


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in _SECONDS:
        return duration(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
