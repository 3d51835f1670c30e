"""What the trackers' own libraries read of what was written: values by name, then step."""

import json
import sqlite3
from collections import defaultdict
from pathlib import Path

from rollart_flow.trackers.wandb_files import offline_records

Written = dict[str, list[tuple[int, float]]]
"""(step, value) of each write by name, in order; one that was written twice is there twice."""


def tensorboard(folder: Path) -> Written:
    """Scalars of a run's event files, unsampled."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {
        tag: [(each.step, each.value) for each in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def wandb(folder: Path) -> Written:
    """History of the offline files of the runs in a folder."""
    found: Written = defaultdict(list)
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in offline_records(path):
            if record.WhichOneof("record_type") == "history":
                values = {"/".join(i.nested_key): i.value_json for i in record.history.item}
                read = {name: json.loads(value) for name, value in values.items()}
                for name, value in read.items():
                    if isinstance(value, int | float):
                        found[name].append((int(read["step"]), float(value)))
    return dict(found)


def trackio(folder: Path) -> Written:
    """Rows of the store of the project `rollart`."""
    found: Written = defaultdict(list)
    with sqlite3.connect(folder / "rollart.db") as store:
        for step, metrics in store.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            for name, value in json.loads(metrics).items():
                if isinstance(value, int | float):
                    found[name].append((step, float(value)))
    store.close()
    return dict(found)


def mlflow(folder: Path) -> Written:
    """Every value of the only run of the store `mlflow.db`."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rollart")
    (run,) = client.search_runs([experiment.experiment_id])
    return {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
