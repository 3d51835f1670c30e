"""The summary of a run as text and tables of the terminal."""

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import duration, grid, sparkline
from rollart_flow.cli.summary import Curve, Preferences, Summary
from rollart_flow.text import counted


def render_summary(summary: Summary) -> RenderableType:
    """Return the figures as tables."""
    return Group(_head(summary), _tables(summary))


def _tables(summary: Summary) -> RenderableType:
    curves: list[RenderableType] = ["", _success(summary.curves)] if summary.curves else []
    return Group(*curves, "", _figures(summary))


def show_summary(out: Console, summary: Summary) -> None:
    """Print the figures, then commands to try next; lines with an address are not wrapped."""
    out.print(_head(summary), soft_wrap=True)
    out.print(_tables(summary))
    out.print("\ntry next", style="bold")
    for command in summary.next_commands:
        out.print(f"  {command}", soft_wrap=True)


def _head(summary: Summary) -> Text:
    steps = counted(summary.steps, "step")
    said = f"  {summary.status}, {steps}, pipeline {summary.pipeline}, {summary.uri}"
    text = Text.assemble((summary.name, "bold"), said)
    if summary.error:
        text.append(f"\n{summary.error}", style="red")
    for warning in summary.warnings:
        text.append(f"\n{warning}", style="yellow")
    if summary.parent:
        text.append(f"\nforked from {summary.parent}")
    return text


def _success(curves: tuple[Curve, ...]) -> Table:
    headings = ("domain", "metric", "first", "last", "95% interval", "curve", "episodes")
    table = grid(headings, right="first last")
    for curve in curves:
        first, last = f"{curve.values[0]:.2f}", f"{curve.values[-1]:.2f}"
        shown = sparkline(list(curve.values))
        ends = "-" if curve.interval is None else "{:.2f} to {:.2f}".format(*curve.interval)
        table.add_row(curve.domain, curve.metric, first, last, ends, shown, str(curve.episodes))
    return table


def _said(name: str, ages: Mapping[int, int], summary: Summary) -> str:
    """Return the ages of the trained trajectories, with alpha if the schedule bounds this age."""
    if not ages:
        return "-"
    bounds = summary.bounded == name and summary.alpha is not None
    alpha = f" (alpha {summary.alpha:g})" if bounds else ""
    counts = ", ".join(f"{age}: {count}" for age, count in ages.items())
    return f"at most {max(ages)}{alpha}; {counts}"


def _preferred(found: Preferences) -> str:
    margins, accuracies = found.margins, found.accuracies
    said = f"margin {margins[0]:.3g} -> {margins[-1]:.3g}"
    if accuracies:
        said += f", accuracy {accuracies[0]:.2f} -> {accuracies[-1]:.2f}"
    return f"{said}, first and last step"


def _figures(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("staleness", _said("staleness", summary.staleness, summary))
    table.add_row("lag", _said("lag", summary.lag, summary))
    outcomes = ", ".join(f"{name} {count}" for name, count in summary.outcomes.items())
    table.add_row("outcomes", outcomes or "-")
    if summary.trajectories != summary.episodes:
        counts = (
            f"{summary.episodes} in {counted(summary.trajectories, 'row')}, one for each branch"
        )
        table.add_row("episodes", counts)
    if summary.trajectories_per_s is not None:
        table.add_row("throughput", f"{summary.trajectories_per_s:.1f} trajectories/s")
    whole = summary.seconds["step"]
    phases = {name: s for name, s in summary.seconds.items() if name != "step" and whole}
    longest = sorted(phases.items(), key=lambda item: -item[1])
    times = ", ".join(f"{name} {duration(s)} ({s / whole:.0%})" for name, s in longest)
    table.add_row("time", f"{duration(whole)} in steps: {times}" if whole else "-")
    if (captured := summary.captured) is not None:
        attempts, calls = counted(captured.attempts, "attempt"), counted(captured.calls, "call")
        table.add_row("captured", f"{attempts}, {calls}; {captured}")
    if summary.preferences is not None:
        table.add_row("preferences", _preferred(summary.preferences))
    if summary.rescorings:
        judged = (f"{name} ({counted(n, 'attempt')})" for name, n in summary.rescorings.items())
        table.add_row("rescored", Text(", ".join(judged)))
    for name, said in () if summary.environments is None else summary.environments.lines():
        table.add_row(name, said)
    return table
