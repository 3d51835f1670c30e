"""SIGKILL of single processes of a run on a local Ray."""

from pathlib import Path

from tests.chaos.faults.processes import kill, of_driver
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import UNEVALUATED, Place, ended

KILLED = "SIGKILL of one process"
STEPS = 40
PROCESSES = {
    "buffer": "ray::BufferActor",
    "coordinator": "ray::CoordinatorActor",
    "trainer": "ray::TrainWorker",
}
"""Titles by the name of the process."""


def killed(folder: Path, *names: str) -> Held:
    """Kill processes, each when the run has gone on for some steps; the run never ends."""
    place = Place(folder, executor="ray")
    with place.run(UNEVALUATED, steps=STEPS) as driver:
        for number, name in enumerate(names):
            place.wait_for_tenth(driver, 1 + 2 * number)
            kill(place.record, of_driver(driver, PROCESSES[name]), name)
        ended(driver)
    return place.held()


@scenario(KILLED)
def kill_the_buffer(folder: Path) -> Held:
    return killed(folder, "buffer")


@scenario(KILLED)
def kill_the_coordinator(folder: Path) -> Held:
    return killed(folder, "coordinator")


@scenario(KILLED)
def kill_the_trainer(folder: Path) -> Held:
    return killed(folder, "trainer")
