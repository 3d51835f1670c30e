"""Readers beside a writer that merges and removes files, and forks of a run that goes on."""

from dataclasses import replace
from pathlib import Path

from rollart_flow.errors import StoreError
from rollart_flow.store import RunStatus, open_run
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import NAME, Place, ended

ROW = "reader beside vacuum, fork of a running run"


@scenario(ROW)
def reader_across_the_end_of_a_run(folder: Path) -> Held:
    """A snapshot whose files the end of the run removes gives its rows or a clear error."""
    place = Place(folder)
    with place.run(steps=60) as driver:
        place.wait_for_tenth(driver, 2)
        snapshot = place.opened().snapshot()
        seen = snapshot.trajectories.select("trajectory_id").collect()
        place.record.fault("snapshot")
        ended(driver)
    try:
        again = snapshot.trajectories.select("trajectory_id").collect()
    except (FileNotFoundError, StoreError) as error:
        said = str(error).splitlines()[0]
        assert ".parquet" in said or "snapshot" in said, said
        note = "clear error"
    else:
        assert again.equals(seen)
        note = "right rows"
    return replace(place.held(), note=note)


@scenario(ROW)
def fork_of_a_running_run(folder: Path) -> Held:
    """The fork starts while its parent merges; both are right."""
    place = Place(folder)
    with place.run(steps=200) as driver:
        place.wait_for_tenth(driver, 2)
        place.record.fault("fork")
        arguments = ("fork", NAME, str(folder / "coins.py"), "--step", "3", "--name", "fork")
        environment = {"ROLLART_CHAOS": str(folder)}
        settings = ("-s", "steps=6", "-s", "every=6")
        with place.command(*arguments, *settings, more=environment) as fork:
            ended(fork)
        ended(driver)
    child = open_run(f"{place.store}/fork")
    assert child.info.status is RunStatus.FINISHED
    assert sorted(child.steps.collect()["step"]) == [4, 5, 6]
    return place.held()
