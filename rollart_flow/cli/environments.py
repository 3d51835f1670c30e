"""The time that a run spent in its environments and boxes, computed from its tables alone.

The rule of the number of environments: while one is in its turn, it asks the engines for nothing,
so that (environment + generation) / generation of them keep one request at the engines at any time,
with the seconds of a turn on both sides.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rollart_flow.cli.output import duration
from rollart_flow.text import counted
from rollart_flow.types import Split

if TYPE_CHECKING:
    import polars as pl

    from rollart_flow.store import Snapshot


@dataclass(frozen=True)
class PoolUse:
    """The boxes of one pool."""

    pool: str
    boxes: int
    at_once: int
    """Most boxes that lived at the same time."""
    leased: float
    """Share of the boxes' time in which attempts had them: the utilization of the pool."""
    in_commands: float
    """Share of the leased time in which commands ran."""
    prewarmed: float
    """Share of the boxes that were started before they were asked for."""
    wait_s: tuple[float, float] | None
    """Median and 99th percentile of the wait for a box [s]; None if no attempt got one."""
    ended_early: int
    """Boxes that a limit, the end of a lease or a failure ended."""


@dataclass(frozen=True)
class EnvironmentUse:
    """The time of the attempts at training tasks."""

    environment_s: float
    """Seconds of a turn in the environment, resets included, on average."""
    generate_s: float
    """Seconds of a turn in which its action was generated, on average."""
    in_flight: float
    """Attempts in flight, on average."""
    waited: float
    """Share of the steps' time that waited for environments: the steps' wait for their batches,
    divided between environments and generation as the time of the attempts is."""
    waited_for_boxes: float
    """The part of it that waited for boxes."""
    pools: tuple[PoolUse, ...]

    @property
    def needed(self) -> float:
        """Environments that keep one request at the engines."""
        return (self.environment_s + self.generate_s) / self.generate_s

    def as_json(self) -> dict[str, Any]:
        """Return the fields, and `needed`, as plain values."""
        return {**asdict(self), "needed": self.needed}

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for people."""
        yield (
            "turns",
            f"{_brief(self.environment_s)} in the environment beside {_brief(self.generate_s)} of "
            f"generation; N_env: {self.needed:.1f} for each request that the engines are to serve "
            f"at once; {self.in_flight:.1f} were in flight, enough for "
            f"{self.in_flight / self.needed:.1f}",
        )
        boxes = f", {self.waited_for_boxes:.0%} for boxes" if self.pools else ""
        yield "waited", f"{self.waited:.0%} of the steps' time for environments{boxes}"
        for use in self.pools:
            waits = "-" if use.wait_s is None else " and ".join(map(_brief, use.wait_s))
            yield (
                use.pool,
                f"{counted(use.boxes, 'box')}, at most {use.at_once} at once; {use.leased:.0%} of "
                f"their time leased, {use.in_commands:.0%} of that in commands; "
                f"{use.prewarmed:.0%} made ahead; waits {waits} (median, p99); "
                f"{use.ended_early} ended early",
            )


def environment_use(tables: "Snapshot") -> EnvironmentUse | None:
    """Return how a run used its environments; None if it has generated nothing."""
    import polars as pl

    from rollart_flow.analysis.accounting.columns import FIRST, summed
    from rollart_flow.analysis.accounting.use import ENVIRONMENTS, step_time

    attempts = tables.trajectories.filter(pl.col("split") == Split.TRAIN)
    inner = {name: summed(name) for name in ("step_s", "generate_s")}
    times = attempts.select(
        *(value.sum().alias(name) for name, value in inner.items()),
        pl.col("turns").list.len().sum().alias("turns"),
        pl.col("reset_s").filter(FIRST).sum(),
        (pl.col("finished_at") - pl.col("created_at"))
        .filter(FIRST)
        .dt.total_microseconds()
        .sum()
        .alias("attempts_us"),
        (pl.col("finished_at").max() - pl.col("created_at").min())
        .dt.total_microseconds()
        .alias("span_us"),
    ).collect()
    (row,) = times.iter_rows(named=True)
    generate_s, environment_s = row["generate_s"] or 0.0, row["step_s"] + row["reset_s"]
    if not row["turns"] or not generate_s or not row["span_us"]:
        return None
    time = step_time(tables)
    waited = 0.0 if time is None else time.shares[ENVIRONMENTS]
    boxes = tables.sandboxes.collect()
    trained = attempts.select("trajectory_id").collect()["trajectory_id"]
    of_attempts = boxes.filter(pl.col("trajectory_id").is_in(trained.implode()))
    for_boxes = float(of_attempts["wait_s"].sum() or 0.0)
    return EnvironmentUse(
        environment_s=environment_s / row["turns"],
        generate_s=generate_s / row["turns"],
        in_flight=row["attempts_us"] / row["span_us"],
        waited=waited,
        waited_for_boxes=waited * for_boxes / environment_s if environment_s else 0.0,
        pools=tuple(_pool_use(str(key[0]), rows) for key, rows in boxes.sort("pool").group_by(
            "pool", maintain_order=True)),
    )  # fmt: skip


def _brief(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}ms" if seconds < 1 else duration(seconds)


def _pool_use(pool: str, boxes: "pl.DataFrame") -> PoolUse:
    import polars as pl

    lived = (pl.col("ended_at") - pl.coalesce("ready_at", "ended_at")).dt.total_microseconds()
    leased = (pl.col("ended_at") - pl.col("leased_at")).dt.total_microseconds()
    lived_us, leased_us, exec_s = boxes.select(
        lived.sum().alias("lived"), leased.sum().alias("leased"), pl.col("exec_s").sum()
    ).row(0)
    changes = pl.concat(
        [
            boxes.select(pl.col("created_at").alias("at"), pl.lit(1).alias("by")),
            boxes.select(pl.col("ended_at").alias("at"), pl.lit(-1).alias("by")),
        ]
    ).sort("at", "by")
    waits = boxes["wait_s"].drop_nulls()
    median, late = waits.quantile(0.5), waits.quantile(0.99)
    return PoolUse(
        pool=pool,
        boxes=boxes.height,
        at_once=int(changes["by"].cum_sum().max() or 0),  # type: ignore[arg-type]
        leased=leased_us / lived_us if lived_us else 0.0,
        in_commands=exec_s * 1e6 / leased_us if leased_us else 0.0,
        prewarmed=float(boxes["prewarmed"].mean() or 0.0),  # type: ignore[arg-type]
        wait_s=None if median is None or late is None else (median, late),
        ended_early=boxes.filter(pl.col("killed_by") != "").height,
    )
