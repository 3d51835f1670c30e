"""The cost of the workers of a run, by resource class and role."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from rollart_flow.store.snapshot import Tables

_HOUR_S = 3600.0


def costs(tables: "Tables", prices: Mapping[str, float]) -> pl.LazyFrame:
    """Return what each resource class cost in each role.

    Args:
        tables: tables of the run.
        prices: price of an hour of one device by resource class. A worker's devices are its GPUs,
            or its CPUs if it has none.

    Columns: granted (resource class), role, workers, hours (worker hours), device_hours, cost (null
    without a price). A worker is paid for from its placement to its next one, or else to the last
    attempt or step before that: the time between a session and its resumption costs nothing.
    """
    moments = pl.concat(
        [tables.trajectories.select("finished_at"), tables.steps.select("finished_at")],
        how="vertical_relaxed",
    ).select(active_at="finished_at").sort("active_at")  # fmt: skip
    far = pl.col("bound_at").max().dt.offset_by("100y")
    placed = tables.bindings.sort("worker", "bound_at").with_columns(
        next_at=pl.coalesce(pl.col("bound_at").shift(-1).over("worker"), far)
    )
    ended = placed.sort("next_at").join_asof(
        moments, left_on="next_at", right_on="active_at", strategy="backward",
        allow_exact_matches=False,
    )  # fmt: skip
    lasted = (pl.col("active_at") - pl.col("bound_at")).dt.total_microseconds() / 1e6
    paid = ended.with_columns(
        hours=lasted.fill_null(0.0).clip(lower_bound=0.0) / _HOUR_S,
        devices=pl.when(pl.col("gpus") > 0).then("gpus").otherwise("cpus"),
    )
    by_class = paid.group_by("granted", "role").agg(
        workers=pl.col("worker").n_unique().cast(pl.Int64),
        hours=pl.col("hours").sum(),
        device_hours=(pl.col("hours") * pl.col("devices")).sum(),
    )
    price = pl.col("granted").replace_strict(
        dict(prices), default=None, return_dtype=pl.Float64
    )  # fmt: skip
    cost = (pl.col("device_hours") * price).alias("cost")
    return by_class.with_columns(cost).sort("granted", "role")
