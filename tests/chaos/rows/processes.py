"""SIGKILL and SIGSTOP of single processes of a run on a local Ray."""

import time
from dataclasses import replace
from pathlib import Path

from rollart_flow.store import RunStatus
from tests.chaos.faults.processes import kill, of_driver, stop
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import UNEVALUATED, Place, ended, last_line

KILLED = "SIGKILL of one process"
STOPPED = "SIGSTOP"
STEPS = 20
PROCESSES = {
    "buffer": "ray::BufferActor",
    "coordinator": "ray::CoordinatorActor",
    "trainer": "ray::TrainWorker",
    "train operator": "ray::MapWorker(MapBatches(TrainOperator))",
    "engine": "ray::EngineWorker",
    "rollout": "ray::MapWorker(MapBatches(RolloutOperator))",
}
"""Titles by the name of the process."""
ENDS_S = 60


def killed(folder: Path, *names: str) -> Held:
    """Kill processes, each when the run has gone on for some steps; the run never ends."""
    place = Place(folder, executor="ray")
    with place.run(UNEVALUATED, steps=STEPS) as driver:
        for number, name in enumerate(names):
            place.wait_for_tenth(driver, 1 + 2 * number)
            kill(place.record, of_driver(driver, PROCESSES[name]), name)
        ended(driver)
    return place.held()


@scenario(KILLED, limit_s=300)
def kill_the_buffer(folder: Path) -> Held:
    return killed(folder, "buffer")


@scenario(KILLED, limit_s=300)
def kill_the_coordinator(folder: Path) -> Held:
    return killed(folder, "coordinator")


@scenario(KILLED, limit_s=300)
def kill_the_trainer(folder: Path) -> Held:
    return killed(folder, "trainer")


@scenario(KILLED, limit_s=300)
def kill_the_streams_and_the_engine(folder: Path) -> Held:
    return killed(folder, "rollout", "train operator", "engine")


def stopped(folder: Path, name: str) -> Held:
    """Stop a process; Ctrl-C ends the run in time, and it can be resumed."""
    place = Place(folder, executor="ray")
    with place.run(UNEVALUATED, steps=STEPS) as driver:
        place.wait_for_tenth(driver, 2)
        stop(place.record, of_driver(driver, PROCESSES[name]), name)
        began = time.monotonic()
        driver.interrupt()
        driver.end()
        took_s = time.monotonic() - began
        assert took_s < ENDS_S, f"Ctrl-C took {took_s:.0f} s"
        left = driver.wait_until_all_are_gone(ENDS_S)
        assert not left, f"processes {left} are left"
    info = place.opened().info
    assert info.status is RunStatus.INTERRUPTED, f"{info.status}: {info.error}"
    place.record.fault("resumed")
    place.finish()
    return replace(place.held(), note=f"Ctrl-C took {took_s:.1f} s; {last_line(driver)}")


@scenario(STOPPED, limit_s=300)
def stop_the_buffer(folder: Path) -> Held:
    return stopped(folder, "buffer")


@scenario(STOPPED, limit_s=300)
def stop_the_coordinator(folder: Path) -> Held:
    return stopped(folder, "coordinator")


@scenario(STOPPED, limit_s=300)
def stop_the_train_operator(folder: Path) -> Held:
    return stopped(folder, "train operator")
