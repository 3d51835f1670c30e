"""Predictions from stored runs against their measured step times, on runs made for the purpose.

The demo's pipeline runs twice, under alpha 1 and under sync_plus. Each run predicts its own step
time, which has a goal; alpha 1 also predicts the other, which is reported beside it.
"""

import tempfile
from pathlib import Path

from rollart_flow import runner
from rollart_flow.control.schedule.schedules import sync_plus
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.executors.ray_cluster import ray_cluster
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.report.report import report
from rollart_flow.simulation.stored.recorded import Recorded, recorded_scenario
from rollart_flow.store import open_run
from tests.benchmarks.records import Record, record

DEMO = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
STEPS = 20
GOAL = 0.1


def run() -> list[Record]:
    """Two short runs and three predictions; takes about three minutes."""
    with tempfile.TemporaryDirectory() as folder, ray_cluster():
        overlapped = _recorded(folder, "alpha-1", schedule="rollart(1)")
        serial = _recorded(folder, "sync", schedule="sync_plus")
        across_s = _predicted_s(overlapped.changed(schedule=sync_plus()))
        off = across_s / serial.measured_step_s - 1
        return [
            _own(overlapped, f"sync_plus predicted from it: {across_s:.2f} s, {off:+.0%}"),
            _own(serial, None),
        ]


def _own(run: Recorded, beside: str | None) -> Record:
    predicted_s = _predicted_s(run)
    said = f"predicted {predicted_s:.2f} s, measured {run.measured_step_s:.2f} s"
    return record(
        f"predict: error of a run's own step time, {run.schedule.name}",
        abs(predicted_s / run.measured_step_s - 1),
        "of the measured",
        at_most=GOAL,
        peer=said if beside is None else f"{said}; {beside}",
    )


def _recorded(folder: str, name: str, *, schedule: str) -> Recorded:
    """Run the demo under a schedule, and read the run."""
    overrides = {"steps": str(STEPS), "every": "100", "schedule": schedule}
    loaded = load_source(DEMO.read_text(), Path(folder) / f"{name}.py", overrides)
    result = runner.run(loaded, store=folder, name=name, on_progress=lambda _: None)
    return recorded_scenario(open_run(result.uri))


def _predicted_s(run: Recorded) -> float:
    simulated = simulate(run.scenario, run.schedule, steps=run.steps)
    return report(simulated, run.scenario, run.schedule, 0).step_s
