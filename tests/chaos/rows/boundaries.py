"""SIGKILL of the driver at each durable boundary, and recomputation that is bit-equal or is not."""

from collections.abc import Mapping
from pathlib import Path

from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import NONE, NUDGE, Place, Variables, at, ended, last_line

OTHERWISE = {NUDGE: "1.01"}
ROW = "SIGKILL at a durable boundary"


def killed_at(
    folder: Path,
    point: str,
    number: int,
    values: Mapping[str, object] | None = None,
    resumed: Variables = NONE,
) -> Held:
    """Kill a driver at a point and resume the run, with other environment variables."""
    place = Place(folder)
    with place.run(values=values, more=at(point, number)) as driver:
        ended(driver, -9)
    place.finish(more=resumed)
    return place.held(diverged=NUDGE in resumed)


@scenario(ROW)
def kill_after_data_files(folder: Path) -> Held:
    """Rows whose files are written are not there before their log entry is."""
    return killed_at(folder, "data files", 9)


@scenario(ROW)
def kill_before_log_entry(folder: Path) -> Held:
    """The same, where the files of all tables are flushed."""
    return killed_at(folder, "log entry", 4)


@scenario(ROW)
def kill_within_a_group_of_tables(folder: Path) -> Held:
    """The rows of one table of a commit are in its log, the others are not."""
    return killed_at(folder, "half a group", 4)


@scenario(ROW)
def kill_after_manifest(folder: Path) -> Held:
    """A batch is formed, and trained by nobody yet."""
    return killed_at(folder, "manifest", 4)


@scenario(ROW)
def kill_after_version(folder: Path) -> Held:
    """The files of a version are there, and no row names them."""
    return killed_at(folder, "version", 3)


@scenario(ROW)
def kill_within_checkpoint(folder: Path) -> Held:
    """A checkpoint is begun."""
    return killed_at(folder, "checkpoint", 1)


@scenario(ROW)
def kill_after_row(folder: Path) -> Held:
    """A step is recorded, and nobody was told."""
    return killed_at(folder, "row", 4)


IN_TURN = (
    ("data files", 9),
    ("log entry", 4),
    ("half a group", 2),
    ("manifest", 2),
    ("version", 2),
    ("checkpoint", 1),
    ("row", 2),
)
"""Every boundary, each with the number of the time at which a driver dies there."""


@scenario(ROW, quick=True)
def kill_at_each_boundary_in_turn(folder: Path) -> Held:
    """One run whose drivers die one after the other, each at another boundary."""
    first, *others = IN_TURN
    place = Place(folder)
    with place.run(steps=16, more=at(*first)) as driver:
        ended(driver, -9)
    for boundary in others:
        with place.resume(more=at(*boundary)) as driver:
            ended(driver, -9)
    place.finish()
    return place.held()


@scenario(ROW, quick=True)
def kill_after_row_recomputed_otherwise(folder: Path) -> Held:
    """A recorded step that differs stops the resume in one line, unless that is accepted."""
    place = Place(folder)
    with place.run(more=at("row", 5)) as driver:
        ended(driver, -9)
    with place.resume(more=OTHERWISE) as driver:
        ended(driver, 1)
        assert "--accept-divergence" in last_line(driver)
    place.finish("--accept-divergence", more=OTHERWISE)
    return place.held(diverged=True)


@scenario(ROW, quick=True)
def kill_after_version_recomputed_otherwise(folder: Path) -> Held:
    """A version is there, no row, and the step that is trained again has other weights."""
    values = {"checkpoint_every": 2, "every": 1}
    return killed_at(folder, "version", 4, values, OTHERWISE)


@scenario(ROW)
def kill_after_checkpoint_recomputed_otherwise(folder: Path) -> Held:
    """Version and checkpoint of a step are there, no row, and the step has other weights."""
    return killed_at(folder, "version", 4, {"checkpoint_every": 1}, OTHERWISE)
