"""The cost of both bounds: step time, and steps to 0.9, of the demo's pipeline.

`rollart(1)` bounds the staleness by one version, `flash(1)` the lag. Each trains the demo with the
same seeds, in this process without Ray, until an evaluation finds both domains at `GOAL`, or for as
many steps as the demo has. The engine and the trainer share the cores of one machine, so that
overlap gains little here: `rollart simulate` predicts what schedules cost on separate devices.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_pipeline
from rollart_flow.store import open_run
from rollart_flow.telemetry import Progress
from tests.benchmarks.learning import PIPELINE
from tests.benchmarks.records import Record, record

GOAL = 0.9
"""Sampled success that both domains must have."""
EVERY = 4
"""Steps between evaluations."""
SCHEDULES = ("rollart(1)", "flash(1)")


@dataclass(frozen=True, slots=True)
class Cost:
    """Figures of one run."""

    step_s: float
    """Median of the step time, without the first step."""
    steps: int | None
    """Steps until `GOAL`; None if it was not reached."""
    staleness_max: int
    lag_max: int
    lag_mean: float


def run() -> Iterator[Record]:
    """Step time and steps to the goal by schedule, and their ratios; takes about four minutes."""
    costs, limit = [], load_pipeline(PIPELINE).pipeline.train.steps
    for schedule in SCHEDULES:
        with tempfile.TemporaryDirectory() as folder:
            cost = measure(schedule, Path(folder))
        costs.append(cost)
        ages = f"lag at most {cost.lag_max}, {cost.lag_mean:.2f} on average"
        yield record(f"schedules: {schedule}, a step", cost.step_s, "s", peer=ages)
        yield record(
            f"schedules: {schedule}, steps to {GOAL:g}",
            limit + 1 if cost.steps is None else cost.steps,
            "steps",
            at_most=limit,
            peer=f"staleness at most {cost.staleness_max}; evaluated every {EVERY} steps",
        )
    of_staleness, of_lag = costs
    said = f"schedules: a bound on the lag ({SCHEDULES[1]}) over one on the staleness"
    yield record(f"{said}, a step", of_lag.step_s / of_staleness.step_s, "x")
    if of_lag.steps is not None and of_staleness.steps is not None:
        yield record(f"{said}, steps to {GOAL:g}", of_lag.steps / of_staleness.steps, "x")


def measure(schedule: str, folder: Path) -> Cost:
    """Run the demo's pipeline under a schedule until it reaches the goal."""
    goal = _Goal()
    with suppress(KeyboardInterrupt):
        runner.run(
            load_pipeline(PIPELINE, {"schedule": schedule, "evaluate.every": str(EVERY)}),
            store=str(folder),
            name="demo",
            executor="inline",
            on_progress=goal,
        )
    steps = open_run(str(folder / "demo")).steps.sort("step").collect()
    return Cost(
        step_s=median(steps["step_s"].to_list()[1:]),
        steps=goal.reached,
        staleness_max=max(steps["staleness_max"]),
        lag_max=max(steps["lag_max"]),
        lag_mean=fmean(steps["lag_mean"].to_list()),
    )


class _Goal:
    """Receives the progress of a run, and interrupts it as Ctrl-C does once it has the goal."""

    def __init__(self) -> None:
        self.reached: int | None = None
        """First evaluated version at which both domains had the goal."""

    def __call__(self, progress: Progress) -> None:
        found = [row for row in progress.rows if row["metric"] == "success_sampled"]
        if found and min(row["value"] for row in found) >= GOAL:
            self.reached = found[0]["policy_version"]
            raise KeyboardInterrupt
