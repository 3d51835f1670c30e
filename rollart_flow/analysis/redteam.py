"""The red-team report: trajectories of a stored run with high reward and a suspicious shape.

Invariant: it reads tables alone and changes nothing; every trajectory in it says which rules fired
and by which figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from rollart_flow.analysis.shapes import shapes
from rollart_flow.analysis.suspicions import RULES

if TYPE_CHECKING:
    from rollart_flow.store import Run

_IDENTITY = ("trajectory_id", "domain", "step", "policy_version", "reward")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A trajectory on which rules fired."""

    trajectory_id: str
    domain: str
    step: int | None
    """First step that trained on it; None: none did."""
    policy_version: int | None
    """Version of its first generated token."""
    reward: float
    fired: Mapping[str, Mapping[str, float]]
    """Figures by name, by the rule that fired."""


@dataclass(frozen=True, slots=True)
class Fired:
    """How often a rule fired."""

    name: str
    why: str
    trajectories: int


@dataclass(frozen=True, slots=True)
class RedTeamReport:
    """What a run's scored trajectories look like."""

    run: str
    scored: int
    """Scored trajectories of the training split."""
    suspicious: int
    """Of these, how many a rule fired on."""
    rules: tuple[Fired, ...]
    """All rules."""
    trajectories: tuple[Suspect, ...]
    """The most suspicious: most rules first, then the most above their group."""


def red_team(run: "Run", top: int = 20) -> RedTeamReport:
    """The report on a run as it is now.

    Args:
        run: live or ended.
        top: trajectories that it names at most.
    """
    tables = run.snapshot()
    figures = dict.fromkeys(name for rule in RULES for name in rule.figures)
    names = [rule.name for rule in RULES]
    judged = shapes(tables).select(
        *_IDENTITY,
        pl.col("excess").alias("_excess"),
        pl.struct(*figures).alias("_figures"),
        *(rule.fires.fill_null(False).alias(rule.name) for rule in RULES),
    )
    fired = judged.filter(pl.any_horizontal(names))
    scored, suspects = pl.collect_all([judged.select(pl.len()), fired])
    worst = suspects.with_columns(pl.sum_horizontal(names).alias("_count")).sort(
        ["_count", "_excess", "trajectory_id"], descending=[True, True, False], nulls_last=True
    )
    return RedTeamReport(
        run=run.info.name,
        scored=int(scored.item()),
        suspicious=len(suspects),
        rules=tuple(Fired(rule.name, rule.why, int(suspects[rule.name].sum())) for rule in RULES),
        trajectories=tuple(_suspect(row) for row in worst.head(top).iter_rows(named=True)),
    )


def _suspect(row: Mapping[str, Any]) -> Suspect:
    fired = {
        rule.name: {name: row["_figures"][name] for name in rule.figures}
        for rule in RULES
        if row[rule.name]
    }
    return Suspect(**{name: row[name] for name in _IDENTITY}, fired=fired)
