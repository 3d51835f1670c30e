"""Accounting: all figures of what a run spent, in one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from rollart_flow.analysis.accounting.columns import seconds_between
from rollart_flow.analysis.accounting.costs import costs
from rollart_flow.analysis.accounting.fates import (
    TRAINED,
    WITHHELD,
    fates_by_domain,
    slow_represented,
)
from rollart_flow.analysis.accounting.transfers import transfers
from rollart_flow.analysis.accounting.use import (
    StepTime,
    active_seconds,
    engine_use,
    stage_use,
    step_time,
)
from rollart_flow.analysis.delivery import EVALUATION

if TYPE_CHECKING:
    from rollart_flow.store.snapshot import Tables


@dataclass(frozen=True)
class Accounting:
    """The figures of what a run spent, on what, and what came of it.

    The frames have the columns that the functions of this package say.
    """

    active_s: float
    """Seconds in which attempts or steps were under way."""
    fates: pl.DataFrame
    slow_represented: float | None
    """Trained share of the slowest quarter of the groups by the trained share of all."""
    time_to_score: tuple[float, float] | None
    """Median and 99th percentile of the time from the end of an attempt to its score [s]."""
    time_to_commit: tuple[float, float] | None
    """Median and 99th percentile of the time from the end of an attempt to its commit [s]."""
    sampled_per_s: float
    """Tokens that were sampled for training, by active second."""
    trained_per_s: float
    """Sampled tokens that were trained on, by active second."""
    engines: pl.DataFrame
    stages: pl.DataFrame
    steps: StepTime | None
    transfers: pl.DataFrame
    costs: pl.DataFrame
    cost: float | None
    """Sum of the costs that are known; None without a price for any class of the run."""
    unpriced: tuple[str, ...]
    """Resource classes without a price."""

    @property
    def cost_per_million_trained(self) -> float | None:
        """Cost of a million sampled tokens that were trained on."""
        trained = self.trained_per_s * self.active_s
        return None if self.cost is None or not trained else self.cost / trained * 1e6

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values: frames as lists of rows."""
        found = {
            name: value.to_dicts() if isinstance(value, pl.DataFrame) else value
            for name, value in self.__dict__.items()
        }
        steps = self.steps and {**self.steps.__dict__, "bound": self.steps.bound}
        return {
            **found, "steps": steps, "cost_per_million_trained": self.cost_per_million_trained,
        }  # fmt: skip


def account(tables: "Tables", prices: Mapping[str, float] | None = None) -> Accounting:
    """Return the accounting of a run.

    Args:
        tables: its tables, of one snapshot.
        prices: price of an hour of one device (GPU, or CPU) by resource class.
    """
    active = active_seconds(tables)
    by_fate = fates_by_domain(tables).collect()
    spent = costs(tables, prices or {}).collect()
    training = by_fate.filter(~pl.col("fate").is_in([EVALUATION, WITHHELD]))
    priced = spent["cost"].drop_nulls()
    return Accounting(
        active_s=active,
        fates=by_fate,
        slow_represented=slow_represented(tables),
        time_to_score=_until(tables, "scored_at"),
        time_to_commit=_until(tables, "committed_at"),
        sampled_per_s=_rate(training, active),
        trained_per_s=_rate(by_fate.filter(pl.col("fate") == TRAINED), active),
        engines=engine_use(tables).collect(),
        stages=stage_use(tables).collect(),
        steps=step_time(tables),
        transfers=transfers(tables).collect(),
        costs=spent,
        cost=float(priced.sum()) if len(priced) else None,
        unpriced=tuple(spent.filter(pl.col("cost").is_null())["granted"].unique().sort()),
    )


def _rate(rows: pl.DataFrame, seconds: float) -> float:
    return float(rows["sampled"].sum()) / seconds if seconds else 0.0


def _until(tables: "Tables", moment: str) -> tuple[float, float] | None:
    """Return the median and the 99th percentile of the time from attempts' ends to a moment."""
    took = seconds_between("finished_at", moment)
    known = tables.trajectories.filter(pl.col("scored_at").is_not_null())
    median, late = known.select(median=took.median(), late=took.quantile(0.99)).collect().row(0)
    return None if median is None or late is None else (float(median), float(late))
