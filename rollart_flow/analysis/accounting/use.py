"""Which resources of a run worked, and what its steps waited for.

Turns have seconds, and no moments: they are taken to follow each other from the creation of their
trajectory, as the page of a trajectory draws them, so that what the shares of workers count is an
estimate. All times in which nothing was under way, such as between a session and its resumption,
are left out.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from rollart_flow.analysis.accounting.columns import (
    FIRST,
    of_turns,
    seconds_between,
    summed,
)
from rollart_flow.types import Split

if TYPE_CHECKING:
    from rollart_flow.store.snapshot import Tables

GENERATION = "generation"
ENVIRONMENTS = "environments"
TRAINING = "training"
WEIGHTS = "weights"
PUBLISHING = "publishing"
READING = "reading"
OTHER = "other"


@dataclass(frozen=True)
class StepTime:
    """Where the time of the training steps went."""

    seconds: float
    """Seconds of all steps."""
    shares: dict[str, float]
    """Share of it by what it was spent on: generation, environments (the wait for batches, divided
    as the time of attempts is), reading (that wait in a run without attempts, which trains on what
    others have stored), training, weights (suspending, updating, resuming), publishing, other."""

    @property
    def bound(self) -> str:
        """Name of the largest share, which bounds a step."""
        return max(self.shares, key=lambda name: self.shares[name])


def step_time(tables: "Tables") -> StepTime | None:
    """Return where the time of the steps went; None if there are none.

    A step waits for its batch while attempts generate or while their environments work; what each
    takes of the wait is taken to be its part of the attempts' time. That tells whether
    environments or GPUs bound a run.
    """
    named = ("step_s", "wait_s", "train_s", "suspend_s", "update_s", "resume_s", "publish_s")
    sums = tables.steps.select(pl.col(*named).sum(), n=pl.len()).collect().row(0, named=True)
    if not sums["n"] or not sums["step_s"]:
        return None
    whole = float(sums["step_s"])
    attempts = tables.trajectories.filter(pl.col("split") == Split.TRAIN).select(
        summed("generate_s").sum(),
        environment_s=summed("step_s").sum() + pl.col("reset_s").filter(FIRST).sum(),
    ).collect().row(0, named=True)  # fmt: skip
    generate_s, environment_s = (float(value or 0.0) for value in attempts.values())
    acted = generate_s + environment_s
    wait = sums["wait_s"] / whole
    shares = {
        GENERATION: wait * generate_s / acted if acted else 0.0,
        ENVIRONMENTS: wait * environment_s / acted if acted else 0.0,
        READING: 0.0 if acted else wait,
        TRAINING: sums["train_s"] / whole,
        WEIGHTS: (sums["suspend_s"] + sums["update_s"] + sums["resume_s"]) / whole,
        PUBLISHING: sums["publish_s"] / whole,
    }
    return StepTime(whole, {**shares, OTHER: max(0.0, 1.0 - sum(shares.values()))})


def active_seconds(tables: "Tables") -> float:
    """Return the seconds in which attempts or steps were under way, each moment counted once."""
    attempts = tables.trajectories.select(begin="created_at", end="finished_at")
    took = pl.duration(microseconds=(pl.col("step_s") * 1e6).cast(pl.Int64))
    steps = tables.steps.select(begin=pl.col("finished_at") - took, end="finished_at")
    both = pl.concat([attempts, steps], how="vertical_relaxed")
    busy = _busy(both.with_columns(worker=pl.lit("all")))
    return float(busy.collect()["busy_s"].sum())


def engine_use(tables: "Tables") -> pl.LazyFrame:
    """Return what each engine worker did.

    Columns: hardware, worker, turns, generate_s (summed over its requests), requests_at_once (on
    average, over the run's active seconds) and busy (share of those in which it had a request).
    """
    active = active_seconds(tables) or 1.0
    turns = _turns(tables)
    spans = turns.select("worker", begin="generating_at", end="acted_at")
    counted = turns.group_by("hardware", "worker").agg(
        turns=pl.len().cast(pl.Int64), generate_s=pl.col("generate_s").sum()
    )
    joined = counted.join(_busy(spans), on="worker", how="left")
    at_once = (pl.col("generate_s") / active).alias("requests_at_once")
    busy = (pl.col("busy_s") / active).alias("busy")
    return joined.with_columns(at_once, busy).drop("busy_s").sort("hardware", "worker")


def stage_use(tables: "Tables") -> pl.LazyFrame:
    """Return how much of each stage was under way, on average over the run's active seconds.

    Columns: stage (generation, environments, reward, training), seconds, at_once (seconds by active
    seconds: the utilization of one trainer, and the mean number of requests, of environments in
    their turn, and of attempts that are scored).
    """
    active = active_seconds(tables) or 1.0
    scored = seconds_between("finished_at", "scored_at")
    attempts = tables.trajectories.select(
        generation=summed("generate_s").sum(),
        environments=summed("step_s").sum() + pl.col("reset_s").filter(FIRST).sum(),
        reward=scored.filter(FIRST).sum(),
    )
    training = tables.steps.select(training=pl.col("train_s").sum())
    both = pl.concat([attempts, training], how="horizontal")
    long = both.unpivot(variable_name="stage", value_name="seconds").with_columns(
        pl.col("seconds").fill_null(0.0)
    )
    return long.with_columns(at_once=pl.col("seconds") / active)


def _turns(tables: "Tables") -> pl.LazyFrame:
    """Return one row for each turn, with the moments at which it was generated and acted on."""
    field = pl.element().struct.field
    before = (field("generate_s") + field("step_s")).cum_sum() - field("step_s")
    rows = tables.trajectories.select(
        "created_at", "reset_s",
        hardware=of_turns("hardware"), worker=of_turns("worker"), generate_s=of_turns("generate_s"),
        acted_s=pl.col("turns").list.eval(before),
    )  # fmt: skip
    turns = rows.explode("hardware", "worker", "generate_s", "acted_s")
    acted = pl.col("created_at") + _duration(pl.col("reset_s") + pl.col("acted_s"))
    known = turns.filter(pl.col("worker").is_not_null()).with_columns(acted_at=acted)
    began = pl.col("acted_at") - _duration(pl.col("generate_s"))
    return known.with_columns(generating_at=began)


def _duration(seconds: pl.Expr) -> pl.Expr:
    return pl.duration(microseconds=(seconds * 1e6).cast(pl.Int64))


def _busy(spans: pl.LazyFrame) -> pl.LazyFrame:
    """Return worker and busy_s: the length of the union of its spans (worker, begin, end)."""
    until = pl.col("end").cum_max().shift(1).over("worker", order_by=["begin", "end"])
    begin = pl.max_horizontal("begin", until)
    fresh = (pl.col("end") - begin).dt.total_microseconds().clip(lower_bound=0) / 1e6
    return spans.with_columns(fresh=fresh).group_by("worker").agg(busy_s=pl.col("fresh").sum())
