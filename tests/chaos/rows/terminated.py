"""SIGTERM and Ctrl-C: the run ends in time, as interrupted, and can be resumed."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from rollart_flow.store import RunStatus
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import UNEVALUATED, Place

ROW = "SIGTERM"
GRACE_S = 60


def interrupted_by(place: Place, number: signal.Signals) -> Held:
    """Send a signal to the driver alone, and resume the run."""
    with place.run(UNEVALUATED, steps=20) as driver:
        place.wait_for_tenth(driver, 1)
        sent = time.monotonic()
        place.record.fault(number.name)
        os.kill(driver.pid, number)
        driver.end()
        took_s = time.monotonic() - sent
        assert took_s < GRACE_S, f"it ended after {took_s:.0f} s"
        left = driver.wait_until_all_are_gone(GRACE_S)
        assert not left, f"processes {left} are left"
    info = place.opened().info
    assert info.status is RunStatus.INTERRUPTED, f"{info.status}: {info.error}"
    place.finish()
    return replace(place.held(), note=f"ended after {took_s:.1f} s")


@scenario(ROW)
def sigterm_of_the_driver(folder: Path) -> Held:
    return interrupted_by(Place(folder), signal.SIGTERM)


@scenario(ROW, limit_s=300)
def sigterm_of_the_driver_on_ray(folder: Path) -> Held:
    return interrupted_by(Place(folder, executor="ray"), signal.SIGTERM)


@scenario(ROW, quick=True)
def sigint_of_the_driver(folder: Path) -> Held:
    return interrupted_by(Place(folder), signal.SIGINT)
