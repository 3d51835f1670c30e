"""Each tracker's own library reads what was written: all of it, once, also after a kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.reading import Cursor, RecordReader
from rollart_flow.store import Run
from rollart_flow.trackers.registry import TRACKERS
from tests.extras import needs
from tests.runs import small_run
from tests.trackers import reading

for _library in ("tensorboard", "wandb", "trackio", "mlflow"):
    needs(_library, _library)

READERS: dict[str, Callable[[Path], reading.Written]] = {
    "tensorboard": lambda folder: reading.tensorboard(folder / "small" / "tensorboard"),
    "wandb": reading.wandb,
    "trackio": reading.trackio,
    "mlflow": reading.mlflow,
}
NUMBERS_OF_THEIR_OWN = {"rollart/record", "step", "_step", "_runtime", "_timestamp"}

TRACK = """
import importlib, json, os, signal, sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from rollart_flow.store import open_run
from rollart_flow.trackers import following
from rollart_flow.trackers.registry import named_trackers
from tests.trackers.test_libraries import READERS

tracker, killed_at = sys.argv[1], int(sys.argv[2])
library = importlib.import_module(tracker)
write = following.Follower._write_one

def write_and_die(self, sink, record):
    write(self, sink, record)
    if record.number == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)

def track():
    return following.catch_up(open_run("small"), named_trackers([tracker]))

child = os.fork()
if child == 0:
    following.Follower._write_one = write_and_die
    print(track(), file=sys.stderr, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
done = [asdict(each) for each in track()]
getattr(library, "teardown", lambda: None)()  # W&B writes the end of its file here
read = READERS[tracker](Path.cwd())
print(json.dumps({"killed": status, "done": done, "read": read}))
"""


def track(folder: Path, tracker: str, killed_at: int) -> dict[str, Any]:
    """Track the run `small` twice in a process of its own, which the library may fill with threads.

    The first time the process is killed when the record of a number was written. What the library
    then reads is returned with what became of the tracker.
    """
    done = subprocess.run(
        [sys.executable, "-c", TRACK, tracker, str(killed_at)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "WANDB_MODE": "offline",
            "WANDB_API_KEY": "k" * 40,
            "WANDB_DIR": str(folder),
            "TRACKIO_DIR": str(folder),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def expected(run: Run) -> dict[str, list[object]]:
    """Every figure of a run by its name, (step, value) at each."""
    found: dict[str, list[object]] = {}
    for record in RecordReader(run).after(Cursor()):
        for name, value in flat(record.figures).items():
            found.setdefault(name, []).append((record.step, pytest.approx(value, rel=1e-6)))
    return found


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow with SQLAlchemy 2.1
@pytest.mark.parametrize("tracker", READERS)
def test_a_tracker_that_was_killed_between_two_steps_has_every_figure_once(
    tmp_path: Path, tracker: str
) -> None:
    run = small_run(tmp_path)
    found = track(tmp_path, tracker, killed_at=3)
    assert os.WTERMSIG(found["killed"]) == signal.SIGKILL
    assert found["done"] == [{"tracker": tracker, "records": 7, "error": None}]
    written = {  # by step: files of one second are read in the order of their processes
        name: sorted((step, value) for step, value in values)
        for name, values in found["read"].items()
        if name not in NUMBERS_OF_THEIR_OWN
    }
    assert written == expected(run)
    assert b"k" * 40 not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_every_built_in_tracker_with_a_store_is_read_back() -> None:
    assert READERS.keys() == {*TRACKERS.names()} - {"prometheus", "otel"}
