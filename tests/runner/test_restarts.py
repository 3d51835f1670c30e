"""SIGKILL of the processes of a run: each comes back alone, and what is in flight goes on."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.replay import replay_step
from rollart_flow.runner import session
from rollart_flow.runner.executors import ray as ray_executor
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.runner.trainer_restart import restart_trainer
from rollart_flow.store import Run, RunStatus
from rollart_flow.types import EventKind, Reason
from tests.chaos.faults.processes import of_clusters
from tests.chaos.matrix import wait_until
from tests.runner.in_flight import check_made_once, check_nothing_lost, logged
from tests.runner.local import events, pid_of, run_with
from tests.runner.world import PIPELINE, check_sound, open_gate, source, was_taken

pytestmark = pytest.mark.usefixtures("shared_ray")

STEPS = 21
LOWEST = 19
"""The priority that lets all others go first."""

STRIKES = '''
import time

stop_at = gate


def gate(name):
    """Kill the process that the file of this moment names, and go on."""
    if name == "advantages":
        (GATES / ".operator").write_text(str(os.getpid()))
        os.rename(GATES / ".operator", GATES / "operator")
    try:
        os.rename(GATES / f"{name}.victim", GATES / f"{name}.{time.time()}")
    except FileNotFoundError:
        return stop_at(name)
    (struck,) = GATES.glob(f"{name}.[0-9]*")
    os.kill(int(struck.read_text()), signal.SIGKILL)
'''
"""Gates that kill any process."""


def struck(gates: Path, **values: int) -> str:
    return source(gates, STRIKES + logged(PIPELINE), **values)


@pytest.fixture
def processes(
    plants: list[RunProcesses], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], RunProcesses]:
    """Returns the processes of the run as they are now."""
    newest: list[RunProcesses] = []

    def restart(*arguments: Any, **settings: Any) -> RunProcesses:
        newest.append(restart_trainer(*arguments, **settings))
        return newest[-1]

    monkeypatch.setattr(session, "restart_trainer", restart)
    return lambda: newest[-1] if newest else plants[-1]


def kill(pid: int) -> float:
    """End a process at once; the time at which it ended [s]."""
    os.kill(pid, signal.SIGKILL)
    return time.time()


def until_next_commit(run: Run, killed: Iterable[float]) -> list[float]:
    """Seconds from each kill to the next committed trajectory."""
    commits = run.trajectories.collect()["committed_at"].dt.epoch("us") / 1e6
    return [round(min(c for c in commits if c > at) - at, 2) for at in killed]


TITLES = {
    "task source": "ray::Readtasks",
    "batch source": "ray::Readbatches",
    "version source": "ray::Readversions",
    "evaluate operator": "ray::MapWorker(MapBatches(EvaluateOperator))",
}
"""Titles that Ray gives to the processes of the streams, by name."""


ALONE = {
    2: "buffer",
    3: "task source",
    5: "batch source",
    6: "coordinator",
    7: "evaluate operator",
    8: "trainer",
    11: "version source",
}
"""Processes that are killed after these steps; the train operator is after step 4."""


def test_a_process_of_each_part_may_be_killed(tmp_path: Path, plants: list[RunProcesses]) -> None:
    """The buffer, the trainer and the rollout process come back alone."""

    def after_step(step: int) -> None:
        processes = plants[-1]
        if step == 1:
            above = os.getpriority(os.PRIO_PROCESS, victim("trainer", processes, tmp_path))
            own = min(os.nice(0), LOWEST - 1)
            assert above > own, "a trainer on shared CPUs lets the streams go first"
        elif step == 2:
            kill(victim("buffer", processes, tmp_path))
        elif step == 3:
            kill(victim("trainer", processes, tmp_path))
            open_gate(tmp_path, "step")  # the rollout process, in the midst of its attempts

    run = run_with(struck(tmp_path, steps=6, every=6), tmp_path, after_step)
    assert was_taken(tmp_path, "step")
    assert len(plants) == 1, "the other processes were not started again"
    check_sound(run, 6)
    assert run.info.status is RunStatus.FINISHED
    assert set(run.trajectories.collect()["outcome"]) <= {"completed", "truncated", "cancelled"}
    assert replay_step(run.uri, 4).equal, "the step that was under way"
    crashes = events(run, EventKind.CRASH)
    assert crashes["subject"].to_list()[:2] == ["buffer", "trainer-cpu-0"]
    assert crashes["subject"].to_list().count("buffer") == 1
    assert set(crashes["reason"]) == {Reason.WORKER_LOST}


@pytest.mark.whole
def test_any_process_may_be_killed(
    tmp_path: Path, plants: list[RunProcesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer, the train operator, the coordinator, the trainer, and the processes of the
    streams die alone, so that no attempt is made twice; then those that hold attempts die, and at
    last the buffer once more than it may come back alone, so that all start again.
    """
    monkeypatch.setattr(ray_executor, "SINGLE_RESTARTS", 1)
    killed: dict[str, float] = {}
    alone: list[datetime] = []

    def after_step(step: int) -> None:
        processes = plants[-1]
        if step == 4:
            open_gate(tmp_path, "advantages")  # the train operator
        elif step in ALONE:
            killed[f"{ALONE[step]} {step}"] = kill(victim(ALONE[step], processes, tmp_path))
        elif step == 13:
            assert len(plants) == 1, "the other processes were not started again"
            alone.append(datetime.now(UTC))
            open_gate(tmp_path, "step")  # the rollout process, in the midst of its attempts
        elif step == 14:
            assert processes.evaluators is not None
            kill(pid_of(processes.evaluators.workers[0]))
        elif step == 15:
            open_gate(tmp_path, "reward")
        elif step == 16:
            kill(pid_of(processes.engines.workers[0]))
        elif step == 19:
            kill(pid_of(processes.buffer))

    run = run_with(struck(tmp_path, steps=STEPS, every=7), tmp_path, after_step)
    for gate in ("advantages", "step", "reward"):
        assert was_taken(tmp_path, gate), gate
    assert len(plants) == 2, "all processes were started again once"
    check_sound(run, STEPS)
    assert run.info.status is RunStatus.FINISHED
    check_made_once(run.trajectories.collect(), tmp_path, until=alone[0])
    assert set(run.trajectories.collect()["outcome"]) <= {"completed", "truncated", "cancelled"}
    assert sorted(set(run.evaluations.collect()["policy_version"])) == [0, 7, 14, 21]
    assert replay_step(run.uri, 9).equal, "the step that was under way"
    crashes = events(run, EventKind.CRASH)
    assert crashes["subject"].to_list()[:3] == ["buffer", "coordinator", "trainer-cpu-0"]
    assert crashes["subject"].to_list().count("buffer") == 2
    assert set(crashes["reason"]) == {Reason.WORKER_LOST}
    pulled = run.steps.filter(pl.col("step").is_between(3, 5)).collect()
    assert (pulled["pull_s"] > 0).all(), "each swaps to the version of the step before"
    (engine,) = plants[0].engines.workers
    returned = events(run, EventKind.RETRY).filter(subject=engine.name)
    assert returned["reason"].to_list() == [Reason.WORKER_LOST]
    assert returned["policy_version"][0] >= 15, "it came back under the version of that moment"
    seconds = until_next_commit(run, killed.values())
    print("seconds to the next commit:", dict(zip(killed, seconds, strict=True)))


def victim(name: str, processes: RunProcesses, gates: Path) -> int:
    match name:
        case "buffer":
            return pid_of(processes.buffer)
        case "coordinator":
            return pid_of(processes.coordinator)
        case "trainer":
            return pid_of(processes.trainers.workers[0])
        case "train operator":
            return int((gates / "operator").read_text())
    title = TITLES[name]
    wait_until(lambda: bool(of_clusters(title)), f"another process in place of the {name}")
    return max(of_clusters(title))  # one of an earlier stream may not have ended yet


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", ["buffer", "coordinator", "train operator", "trainer", "task source", "batch source"]
)
def test_it_dies_alone_at_any_moment(
    tmp_path: Path,
    plants: list[RunProcesses],
    processes: Callable[[], RunProcesses],
    name: str,
) -> None:
    moments = {2: "reset", 4: "step", 6: "reward", 8: "advantages", 10: "training"}

    def after_step(step: int) -> None:
        if step in moments:
            waiting = tmp_path / ".victim"
            waiting.write_text(str(victim(name, processes(), tmp_path)))
            os.rename(waiting, tmp_path / f"{moments[step]}.victim")

    run = run_with(struck(tmp_path, steps=14, every=14), tmp_path, after_step)
    strikes = {
        moment: float(path.name.removeprefix(f"{moment}."))
        for moment in moments.values()
        for path in tmp_path.glob(f"{moment}.[0-9]*")
    }
    assert list(strikes) == list(moments.values())
    assert len(plants) == 1, "the other processes were not started again"
    recorded = {"trainer": "trainer-cpu-0"}.get(name, name)
    recorded_deaths = name in ("buffer", "coordinator", "trainer")
    died = [recorded] * len(moments) if recorded_deaths else []
    check_nothing_lost(run, tmp_path, 14, died)
    assert replay_step(run.uri, 11).equal, "a step that was trained again"
    seconds = until_next_commit(run, strikes.values())
    print(
        f"seconds from the end of the {name} to the next commit:",
        [*zip(strikes, seconds, strict=True)],
    )


@pytest.mark.whole
def test_a_buffer_writer_and_the_buffer_before_it_die_alone(
    tmp_path: Path, plants: list[RunProcesses]
) -> None:
    text = struck(tmp_path, steps=8, every=4).replace("batch_size=8,", "batch_size=8, writers=2,")

    def after_step(step: int) -> None:
        if step in (2, 5):
            kill(pid_of(plants[-1].writers[step % 2]))
        elif step == 4:
            kill(pid_of(plants[-1].buffer))

    run = run_with(text, tmp_path, after_step)
    assert len(plants) == 1, "no other process was started again"
    check_nothing_lost(run, tmp_path, 8, ["buffer"])
