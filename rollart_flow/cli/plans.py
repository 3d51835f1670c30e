"""Rendering of a plan as a graph and a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import grid
from rollart_flow.pipeline.plan import CONSUMER, EVALUATION, PRODUCER, Plan, Stage

if TYPE_CHECKING:
    from rollart_flow.runner.placement import Grant

_VERSIONS = "policy versions"
_ARROW = " ──▶ "


def render_plan(plan: Plan) -> RenderableType:
    """The graph, then each node with what carries it out and what it asks for."""
    return Group(Text(plan.pipeline, style="bold"), "", _picture(plan), "", _table(plan))


def _picture(plan: Plan) -> Text:
    """The chain of nodes, with the policy's way back under it, and evaluation beside it."""
    chain = [stage.node for stage in plan.stages if stage.stream in (PRODUCER, CONSUMER)]
    line = "  " + _ARROW.join(chain)
    back = next(edge for edge in plan.edges if edge.carries == _VERSIONS)
    start = line.index(f" {back.target}") + 1 + len(back.target) // 2
    end = line.rindex(f" {back.source}") + 1 + len(back.source) // 2
    label = f" {_VERSIONS} "
    under = " " * start + "▲" + label.center(end - start - 1, "─") + "┘"
    lines = [line, under]
    beside = (stage for stage in plan.stages if stage.stream == EVALUATION)
    lines += [f"  {stage.node} ◀── {_VERSIONS} of {back.source}" for stage in beside]
    return Text("\n".join(lines), no_wrap=True)


def _table(plan: Plan) -> Table:
    table = grid(("node", "stream", "carried out by", "parallel", "resources", "what"))
    table.columns[4].no_wrap = True
    for each in plan.stages:
        what = _resources(each), each.settings
        table.add_row(each.node, each.stream, each.operator, each.parallel, *what)
    return table


def _resources(stage: Stage) -> str:
    asked = [want for want in stage.wants if want.resource != want.fallback]
    return "\n".join(f"{w.domain}: {w.resource}, else {w.fallback}" for w in asked) or "CPU"


def render_grants(grants: "Sequence[Grant]") -> RenderableType:
    """A table of the resources that the connected Ray cluster would grant now."""
    table = grid(("role", "domain", "asks for", "gets", "workers"))
    table.title, table.title_justify = "granted now", "left"
    for grant in grants:
        gets = f"{grant.granted} (fallback)" if grant.fallback else grant.granted
        table.add_row(grant.role, grant.domain, grant.requested, gets, str(grant.workers))
    return table
