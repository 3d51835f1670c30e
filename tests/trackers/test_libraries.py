"""Each tracker's own library reads what was written: all of it, once, also after a kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
import json, os, signal, sys
from dataclasses import asdict
from rollart_flow.store import open_run
from rollart_flow.trackers import cursors, following
from rollart_flow.trackers.registry import named_trackers

uri, tracker, *killed = sys.argv[1:]
if killed:
    write = cursors.write_cursor
    def write_or_die(run, tracker, cursor):
        if cursor.records == int(killed[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        write(run, tracker, cursor)
    following.write_cursor = write_or_die
print(json.dumps([asdict(each) for each in following.catch_up(open_run(uri), named_trackers([tracker]))]))
"""  # noqa: E501


def track(folder: Path, tracker: str, *killed_at: str) -> subprocess.CompletedProcess[str]:
    """Track the run `small` in a process of its own, which the library may fill with threads."""
    uri = str(folder / "small")
    return subprocess.run(
        [sys.executable, "-c", TRACK, uri, tracker, *killed_at],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "WANDB_MODE": "offline",
            "WANDB_API_KEY": "k" * 40,
            "WANDB_DIR": str(folder),
            "TRACKIO_DIR": str(folder),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


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
    killed = track(tmp_path, tracker, "3")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = track(tmp_path, tracker)
    assert json.loads(done.stdout.splitlines()[-1]) == [
        {"tracker": tracker, "records": 7, "error": None}
    ], done.stderr
    read = READERS[tracker](tmp_path)
    written = {name: values for name, values in read.items() if name not in NUMBERS_OF_THEIR_OWN}
    assert written == expected(run)
    assert b"k" * 40 not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_every_built_in_tracker_with_a_store_is_read_back() -> None:
    assert READERS.keys() == {*TRACKERS.names()} - {"prometheus", "otel"}
