"""Two drivers of one run: one goes on, and the other is told."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow import runner
from rollart_flow.errors import RunFailedError
from tests.chaos.faults.disk import check_root
from tests.chaos.faults.processes import kill, of_driver
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import UNEVALUATED, Place, ended
from tests.chaos.rows.processes import PROCESSES

ROW = "two drivers"
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
HOST = (*NAMESPACE, "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")


def second_driver(folder: Path, *, first: tuple[str, ...] = ()) -> Held:
    """Resume a run from this process while another driver, started through a command, drives it."""
    if first:
        check_root(first[0])
    place = Place(folder)
    with place.run(steps=40, through=first) as driver:
        place.wait_for_tenth(driver, 1)
        said = told(place)
        ended(driver)
    return replace(place.held(), note=said)


def told(place: Place) -> str:
    """What this process is told when it resumes a run that another one drives."""
    place.record.fault("second driver")
    with pytest.raises(RunFailedError) as refused:
        runner.resume(place.uri, executor="inline")
    return f"told: {refused.value}"


@scenario(ROW, quick=True)
def second_driver_on_the_host(folder: Path) -> Held:
    return second_driver(folder)


@scenario(ROW)
def second_driver_in_another_pid_namespace(folder: Path) -> Held:
    return second_driver(folder, first=NAMESPACE)


@scenario(ROW)
def second_driver_on_another_host(folder: Path) -> Held:
    """The first has another host name and PID namespace, and shares the folder."""
    return second_driver(folder, first=HOST)


@scenario(ROW, limit_s=300)
def second_driver_while_the_buffer_restarts(folder: Path) -> Held:
    """The process that writes the tables is gone for seconds, but the driver is not."""
    place = Place(folder, executor="ray")
    with place.run(UNEVALUATED, steps=20) as driver:
        place.wait_for_tenth(driver, 2)
        kill(place.record, of_driver(driver, PROCESSES["buffer"]), "buffer")
        said = told(place)
        ended(driver)
    return replace(place.held(), note=said)
