"""Versions that are published beside the next training step, in real runs.

Whoever holds the lock of the folder of weights keeps the trainer from publishing: that is how a
version is on its way for as long as a test wants.
"""

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import RunFailedError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.store import Run, open_run
from rollart_flow.telemetry import Progress, ProgressKind
from rollart_flow.types import EventKind
from rollart_flow.weights import LocalWeightStore, fingerprint
from rollart_flow.weights.atomic import locked
from tests.runner.local import events, pid_of
from tests.runner.world import check_sound, source
from tests.weights.conformance import tensors_of

STEPS = 5


class Watched:
    """A run: somebody acts before its first attempt, and after its first step, once each."""

    def __init__(
        self,
        folder: Path,
        before: Callable[[], None],
        after: Callable[[], None],
        executor: str = "ray",
    ) -> None:
        self._acts = {"rolling out": before, "step 1": after}
        self._executor = executor
        self._folder = folder
        self.uri = str(folder / "coins")
        self.store = LocalWeightStore(folder / "coins" / "weights")

    def run(self) -> Run:
        """Run it to its end."""
        loaded = load_source(source(self._folder, steps=STEPS, every=STEPS), self._folder / "c.py")
        runner.run(
            loaded,
            store=str(self._folder),
            name="coins",
            executor=self._executor,
            on_progress=self._told,
        )
        return open_run(self.uri)

    def _told(self, progress: Progress) -> None:
        step = progress.kind is ProgressKind.STEP
        now = f"step {progress.row['step']}" if step else progress.text
        self._acts.pop(now, lambda: None)()


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.whole)])
def test_neither_the_step_nor_its_rows_wait_for_a_version_and_no_engine_moves_before_it_is_there(
    tmp_path: Path, plants: list[RunProcesses], executor: str
) -> None:
    held = ExitStack()

    def hold() -> None:
        held.enter_context(locked(Path(watched.store.folder)))

    def look() -> None:
        processes = plants[-1]
        batch = processes.coordinator.call.next_batch(2)
        assert batch is not None
        assert batch.step == 2, "it may be trained on"
        assert watched.store.versions() == (0,)
        assert processes.engines.call.version() == [0]
        held.close()

    watched = Watched(tmp_path, hold, look, executor)
    with held:
        run = watched.run()
    check_sound(run, STEPS)
    steps = run.steps.sort("step").collect()
    assert (steps["push_s"] > 0).to_list() == [False, True, True, True, True]
    assert (steps["publish_s"] > 0).all()
    weights = run.weights.sort("policy_version").collect()
    assert weights["policy_version"].to_list() == list(range(STEPS + 1))
    assert weights["checksum"].to_list()[1:] == steps["fingerprint"].to_list()
    for version in watched.store.versions():
        assert fingerprint(watched.store.read(version)) == weights["checksum"][version]


@pytest.mark.whole
def test_a_version_that_cannot_be_published_ends_the_run_which_can_be_resumed(
    tmp_path: Path,
) -> None:
    def spoil() -> None:
        watched.store.publish(1, tensors_of(7))

    watched = Watched(tmp_path, spoil, lambda: None)
    with pytest.raises(RunFailedError, match=r"version 1 in \S+ was published with"):
        watched.run()
    ended = open_run(watched.uri)
    assert ended.steps.collect()["step"].to_list() == [1]
    drawn = ended.trajectories.select(pl.col("token_versions").list.max()).collect()
    assert drawn["token_versions"].max() == 0, "nobody took it for version 1"
    shutil.rmtree(Path(watched.store.folder) / "v000001")
    runner.resume(watched.uri)
    check_sound(open_run(watched.uri), STEPS)


@pytest.mark.whole
def test_a_trainer_that_is_killed_while_it_publishes_leaves_nothing_of_the_version(
    tmp_path: Path, plants: list[RunProcesses]
) -> None:
    held, pids = ExitStack(), list[int]()

    def hold() -> None:
        held.enter_context(locked(Path(watched.store.folder)))
        pids.extend(map(pid_of, plants[-1].trainers.workers))

    def kill() -> None:
        (trainer,) = pids
        os.kill(trainer, signal.SIGKILL)
        assert watched.store.versions() == (0,)
        held.close()

    watched = Watched(tmp_path, hold, kill)
    with held:
        run = watched.run()
    check_sound(run, STEPS)
    assert len(plants) == 1, "the trainer was started anew, and nothing else"
    assert events(run, EventKind.CRASH)["subject"].to_list() == ["trainer-cpu-0"]
    assert run.weights.collect()["policy_version"].is_unique().all()
    checksums = dict(run.weights.select("policy_version", "checksum").collect().iter_rows())
    for version in watched.store.versions():
        assert fingerprint(watched.store.read(version)) == checksums[version]
