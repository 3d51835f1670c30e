"""The newest file is torn, as a disk that lost power may leave it."""

from dataclasses import replace
from pathlib import Path

from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import Place, at, ended, last_line

ROW = "torn newest file"


def torn(folder: Path, pattern: str, keep: float) -> Held:
    """Kill a run, and leave only the beginning of the newest file of a kind.

    Either the file's rows were acknowledged to nobody, and the run goes on without them; or the
    run says in one line what to do, and goes on once the file is whole again.
    """
    place = Place(folder)
    with place.run(more=at("row", 5)) as driver:
        ended(driver, -9)
    found = sorted(Path(place.uri).glob(pattern), key=lambda path: path.stat().st_mtime_ns)
    whole = found[-1].read_bytes()
    found[-1].write_bytes(whole[: int(keep * len(whole))])
    with place.resume() as driver:
        code = ended(driver, 0, 1)
    if code == 0:
        return replace(place.held(), note="went on")
    said = last_line(driver)
    assert said.startswith("error: "), driver.said
    assert found[-1].name in said, driver.said
    found[-1].write_bytes(whole)
    place.finish()
    return replace(place.held(), note=said)


@scenario(ROW, quick=True)
def torn_run_json(folder: Path) -> Held:
    return torn(folder, "run.json", 0.5)


@scenario(ROW, quick=True)
def torn_log_entry(folder: Path) -> Held:
    return torn(folder, "tables/trajectories/_delta_log/*.json", 0.5)


@scenario(ROW)
def empty_log_entry(folder: Path) -> Held:
    return torn(folder, "tables/steps/_delta_log/*.json", 0)


@scenario(ROW, quick=True)
def torn_data_file(folder: Path) -> Held:
    return torn(folder, "tables/trajectories/*.parquet", 0.5)
