"""Rendering of a plan as a graph and a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollart_flow.cli.output import grid
from rollart_flow.pipeline.plan import CONSUMER, EVALUATION, Plan, Stage

if TYPE_CHECKING:
    from rollart_flow.runner.placement import Grant

_VERSIONS = "policy versions"
_ARROW = " ──▶ "


def render_plan(plan: Plan) -> RenderableType:
    """The graph, then each node with what carries it out and what it asks for."""
    return Group(Text(plan.pipeline, style="bold"), "", _picture(plan), "", _table(plan))


def _picture(plan: Plan) -> Text:
    """The chain of nodes, with the policy's way back under it, and evaluation beside it."""
    chain = _chain(plan)
    lines = ["  " + _ARROW.join(chain)]
    target, source = chain[0], chain[-1]
    if back := [edge for edge in plan.edges if edge.carries == _VERSIONS and edge.target in chain]:
        target = back[0].target
        start = lines[0].index(f" {target}") + 1 + len(target) // 2
        end = lines[0].rindex(f" {source}") + 1 + len(source) // 2
        label = f" {_VERSIONS} "
        lines.append(" " * start + "▲" + label.center(end - start - 1, "─") + "┘")
    others = (edge for edge in plan.edges if edge.source not in chain)
    lines += [f"  {edge.source}{_ARROW}{edge.target}" for edge in others]
    beside = (s.node for s in plan.stages if s.stream == EVALUATION and s.node not in chain)
    lines += [f"  {node} ◀── {_VERSIONS} of {source}" for node in beside]
    return Text("\n".join(lines), no_wrap=True)


def _chain(plan: Plan) -> list[str]:
    """Nodes from the first one to the training, along the first edge into each."""
    first = {edge.target: edge.source for edge in reversed(plan.edges) if edge.carries != _VERSIONS}
    chain = [next(stage.node for stage in reversed(plan.stages) if stage.stream == CONSUMER)]
    while chain[0] in first:
        chain.insert(0, first[chain[0]])
    return chain


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
