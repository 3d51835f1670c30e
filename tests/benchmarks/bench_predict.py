"""Predictions of six settings from each other, on runs made for the purpose.

The demo's pipeline runs for real under two bounds, without overlap, with redundancy and with two
other batches. Each run predicts the step time of all six, itself included, from its tables alone.
Step times are medians after the warm-up, measured and predicted alike, since other load on a small
machine makes single steps long.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.report.report import warmup_of
from rollart_flow.simulation.stored.recorded import Recorded, recorded_scenario
from rollart_flow.store import open_run
from tests.benchmarks.records import Record, record

DEMO = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
STEPS = 24
GOAL = 0.15
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "alpha 1": {},
    "alpha 2": {"schedule": "rollart(2)"},
    "sync_plus": {"schedule": "sync_plus"},
    "redundancy 2": {"rollout.redundancy": "2"},
    "batch 64": {"batch_size": "64"},
    "batch 256": {"batch_size": "256"},
}
"""Changes of the demo's settings by name."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run, and the median of its step times."""

    recorded: Recorded
    step_s: float


def run() -> list[Record]:
    """Six runs, and the predictions of each from each; takes about two minutes."""
    with tempfile.TemporaryDirectory() as folder:
        measured = {name: _measured(_run(folder, name)) for name in SETTINGS}
        return [_row(name, measured) for name in measured]


def _run(folder: str, name: str) -> str:
    """Run the demo under a setting; the URI of the run."""
    overrides = {"steps": str(STEPS), "every": "100", **SETTINGS[name]}
    word = name.replace(" ", "-")
    loaded = load_source(DEMO.read_text(), Path(folder) / f"{word}.py", overrides)
    ended = runner.run(
        loaded, store=folder, name=word, executor="inline", on_progress=lambda _: None
    )
    return ended.uri


def _measured(uri: str) -> MeasuredRun:
    opened = open_run(uri)
    recorded = recorded_scenario(opened)
    steps = opened.snapshot().steps.sort("step").collect()["step_s"]
    return MeasuredRun(recorded, _median(steps.to_list(), recorded))


def _median(seconds: list[float], run: Recorded) -> float:
    late = sorted(seconds[warmup_of(run.schedule) :])
    return late[len(late) // 2]


def _row(source: str, measured: Mapping[str, MeasuredRun]) -> Record:
    """The largest error of the predictions from one run, with all of them beside it."""
    own = measured[source].recorded
    errors = {n: _predicted_s(own, each.recorded) / each.step_s - 1 for n, each in measured.items()}
    said = ", ".join(f"{name} {error:+.0%}" for name, error in errors.items())
    return record(
        f"predict: largest error of six settings from a run under {source}",
        max(abs(error) for error in errors.values()),
        "of the measured median",
        at_most=GOAL,
        peer=f"{said}; measured {measured[source].step_s:.2f} s",
    )


def _predicted_s(source: Recorded, target: Recorded) -> float:
    """The median step time of the target's settings, from the tables of the source."""
    changed = source.changed(
        schedule=target.schedule,
        redundancy=target.scenario.redundancy,
        batch_size=target.scenario.batch_size,
    )
    steps = simulate(changed.scenario, changed.schedule, steps=target.steps).steps
    return _median([each.ended - each.asked for each in steps], changed)
