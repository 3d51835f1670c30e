"""SIGKILL of one process at five moments: it comes back alone, and what is in flight goes on."""

from dataclasses import replace
from pathlib import Path

from tests.chaos.faults.processes import titled
from tests.chaos.held import Held
from tests.chaos.hooks.wiretap import MOMENTS, STRIKES
from tests.chaos.matrix import scenario, wait_until
from tests.chaos.place import UNEVALUATED, Place, ended
from tests.chaos.rows.processes import PROCESSES
from tests.runner.in_flight import check_nothing_lost, logged
from tests.runner.shell import Shell

ROW = "SIGKILL of one process at five moments"
STEPS = 60
BETWEEN = 2
"""Steps between a death and the next one."""
AGAIN_S = 10.0
"""Longest time from a death to the next acknowledged trajectory."""
DIED = {"trainer": "trainer-cpu-0", "train operator": None}
"""Names under which a run reports deaths, where it has others; None where Ray Data restarts it."""


def killed_at_each_moment(folder: Path, name: str) -> Held:
    strikes = folder / "strikes"
    strikes.mkdir()
    place = Place(folder, executor="ray", environment={STRIKES: str(strikes)})
    with place.run(logged(UNEVALUATED), steps=STEPS) as driver:
        for moment in MOMENTS:
            kill_at(place, driver, strikes, moment, PROCESSES[name])
        ended(driver)
    died = DIED.get(name, name)
    deaths = [] if died is None else [died] * len(MOMENTS)
    check_nothing_lost(place.opened(), folder, STEPS, deaths)
    held = place.held()
    assert held.recover_s is not None
    assert held.recover_s < AGAIN_S, f"no trajectory was acknowledged for {held.recover_s:.1f} s"
    return replace(held, note=f"{len(MOMENTS)} deaths, 0 attempts lost in flight")


def kill_at(place: Place, driver: Shell, strikes: Path, moment: str, title: str) -> None:
    """Kill the process with a title at a moment, and wait until the run has gone on."""
    wait_until(lambda: bool(titled(title, driver.processes())), title, 120)
    waiting = strikes / "waiting"
    waiting.write_text(str(min(titled(title, driver.processes()))))
    waiting.rename(strikes / f"{moment}.victim")
    taken = strikes / f"{moment}.victim.taken"
    wait_until(taken.exists, f"a process that comes to the moment {moment}")
    target = newest(place) + BETWEEN
    wait_until(lambda: newest(place) >= target, f"step {target}", 120)


def newest(place: Place) -> int:
    """The last step whose row was acknowledged."""
    return max((line["step"] for line in place.record.lines() if "step" in line), default=0)


@scenario(ROW, limit_s=480)
def buffer_at_five_moments(folder: Path) -> Held:
    return killed_at_each_moment(folder, "buffer")


@scenario(ROW, limit_s=480)
def coordinator_at_five_moments(folder: Path) -> Held:
    return killed_at_each_moment(folder, "coordinator")


@scenario(ROW, limit_s=480)
def train_operator_at_five_moments(folder: Path) -> Held:
    return killed_at_each_moment(folder, "train operator")


@scenario(ROW, limit_s=480)
def trainer_at_five_moments(folder: Path) -> Held:
    return killed_at_each_moment(folder, "trainer")
