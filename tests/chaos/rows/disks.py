"""Disks that are full, fail or do not answer, while the run writes each kind of file."""

import time
from dataclasses import replace
from pathlib import Path

import polars as pl

from rollart_flow.types import EventKind
from tests.chaos.faults.disk import freezable_disk, frozen, small_disk
from tests.chaos.held import Held
from tests.chaos.hooks.wiretap import FILL
from tests.chaos.matrix import scenario
from tests.chaos.place import Place, at, ended, last_line

ROW = "disk full, EIO, stalled file system"
FULL = "No space left on device"


def full_at(folder: Path, point: str, number: int, steps: int) -> Held:
    """Fill the disk at a point: the run ends and says so, and goes on once there is space."""
    with small_disk(folder / "disk", mib=96) as disk:
        place = Place(folder, store=disk / "store")
        filler = disk / "filler"
        with place.run(
            steps=steps, more={**at(point, number, "fill"), FILL: str(filler)}
        ) as driver:
            ended(driver, 1)
        said = last_line(driver)
        assert said.startswith("error: "), driver.said
        assert FULL in said, driver.said
        filler.unlink()
        place.record.fault("space again")
        place.finish()
        return replace(place.held(), note=said)


@scenario(ROW, quick=True)
def disk_full_at_commit(folder: Path) -> Held:
    return full_at(folder, "log entry", 5, steps=8)


@scenario(ROW)
def disk_full_at_checkpoint(folder: Path) -> Held:
    return full_at(folder, "checkpoint", 1, steps=8)


@scenario(ROW, quick=True)
def disk_fails_at_commit(folder: Path) -> Held:
    """A commit fails with EIO once: the run ends and says so, or goes on."""
    place = Place(folder)
    with place.run(more=at("log entry", 4, "EIO")) as driver:
        ended(driver, 1)
    assert "Input/output error" in last_line(driver), driver.said
    place.finish()
    return replace(place.held(), note=last_line(driver))


def maintenance_fails(folder: Path, point: str) -> Held:
    """Maintenance fails once: the run goes on, and an event says so."""
    place = Place(folder)
    with place.run(steps=60, more=at(point, 1, "ENOSPC")) as driver:
        ended(driver)
    events = place.opened().events.filter(pl.col("kind") != EventKind.RUN).collect()
    said = events.filter(pl.col("detail").str.contains(FULL))
    assert said.height, "no event tells that maintenance failed"
    return replace(place.held(), note=f"event {said['kind'][0]}")


@scenario(ROW, waits=True)
def disk_does_not_answer(folder: Path) -> Held:
    """All writes wait for twenty seconds; then the run goes on."""
    with freezable_disk(folder / "disk", mib=96) as disk:
        place = Place(folder, store=disk / "store")
        with place.run(steps=40) as driver:
            place.wait_for_tenth(driver, 2)
            with frozen(disk):
                time.sleep(20)
            place.record.fault("it answers again")
            ended(driver)
        return place.held()


@scenario(ROW)
def disk_full_at_merge(folder: Path) -> Held:
    return full_at(folder, "merge", 1, steps=60)


@scenario(ROW)
def merge_fails(folder: Path) -> Held:
    return maintenance_fails(folder, "merge")


@scenario(ROW)
def vacuum_fails(folder: Path) -> Held:
    return maintenance_fails(folder, "vacuum")
