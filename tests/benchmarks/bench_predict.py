"""Predictions of six settings from each other, on runs made for the purpose.

The demo's pipeline runs for real under two bounds, without overlap, with redundancy and with two
other batches. Each run predicts the step time of all six, itself included, from its tables alone.
Step times are medians after the warm-up, measured and predicted alike, since other load on a small
machine makes single steps long.

The speed of a small machine changes within minutes, and what a policy learns differs from run to
run. So the settings take turns, each runs several times, and the median of the predictions from
the runs of one is compared with the median of the runs of the other. Each row says how far apart
single runs of its setting were, which is the part of an error that no prediction can avoid, and
how many single predictions were within the goal.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.planning.proposal import PREDICTION_ERROR
from rollart_flow.simulation.report.report import warmup_of
from rollart_flow.simulation.stored.recorded import Recorded, recorded_scenario
from rollart_flow.store import open_run
from tests.benchmarks.records import Record, record

DEMO = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
STEPS = 24
REPEATS = 3
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


Runs = Mapping[str, Sequence[MeasuredRun]]
"""The runs of each setting."""


def run() -> list[Record]:
    """Six settings three times, and predictions of each from each; takes about six minutes."""
    with tempfile.TemporaryDirectory() as folder:
        uris = [
            (name, _run(folder, name, repeat)) for repeat in range(REPEATS) for name in SETTINGS
        ]
        runs = {name: [_measured(u) for own, u in uris if own == name] for name in SETTINGS}
        return list(rows(runs))


def rows(runs: Runs) -> Iterator[Record]:
    """For each setting, the largest error of the predictions from its runs; then their number."""
    close, covered, all_errors = 0, 0, _errors(runs)
    for source, own in runs.items():
        errors = {target: all_errors[source, target] for target in runs}
        medians = {target: median(found) for target, found in errors.items()}
        close += sum(abs(error) <= GOAL for error in medians.values())
        single = [error for found in errors.values() for error in found]
        covered += sum(abs(error) <= PREDICTION_ERROR for error in single)
        said = ", ".join(f"{target} {error:+.0%}" for target, error in medians.items())
        took = [each.step_s for each in own]
        yield record(
            f"predict: largest error of six settings from runs under {source}",
            max(map(abs, medians.values())),
            "of the measured median",
            at_most=GOAL,
            peer=f"{said}; measured {median(took):.2f} s, {min(took):.2f} to {max(took):.2f}; "
            f"{sum(abs(error) <= GOAL for error in single)} of {len(single)} single predictions "
            f"within {GOAL:.0%}",
        )
    yield record(
        f"predict: predictions of one setting from another within {GOAL:.0%}",
        close,
        f"of {len(runs) ** 2}",
        at_least=len(runs) ** 2,
        peer="medians of the repeats, predicted and measured",
    )
    yield record(
        "predict: measured medians within the interval of a single prediction",
        covered / (len(runs) ** 2 * REPEATS),
        "of all predictions",
        at_least=0.9,
        peer=f"the interval of rollart plan --from, {PREDICTION_ERROR:.0%}",
    )


def _errors(runs: Runs) -> Mapping[tuple[str, str], list[float]]:
    """The errors of the predictions from each run of one setting, by (its name, the other one's).

    What is predicted is the median step time of all runs of the other one.
    """
    pairs = list(product(runs, runs))
    wanted = [
        (each.recorded, runs[target][0].recorded) for own, target in pairs for each in runs[own]
    ]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        predicted = processes.map(_predicted_s, *zip(*wanted, strict=True))
        measured = {name: median(each.step_s for each in made) for name, made in runs.items()}
        return {
            (own, target): [next(predicted) / measured[target] - 1 for _ in runs[own]]
            for own, target in pairs
        }


def _run(folder: str, name: str, repeat: int) -> str:
    """Run the demo under a setting; the URI of the run."""
    overrides = {"steps": str(STEPS), "every": "100", **SETTINGS[name]}
    word = f"{name.replace(' ', '-')}-{repeat}"
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


def _predicted_s(source: Recorded, target: Recorded) -> float:
    """The median step time of the target's settings, from the tables of the source."""
    changed = source.changed(
        schedule=target.schedule,
        redundancy=target.scenario.redundancy,
        batch_size=target.scenario.batch_size,
    )
    steps = simulate(changed.scenario, changed.schedule, steps=target.steps).steps
    return _median([each.ended - each.asked for each in steps], changed)
