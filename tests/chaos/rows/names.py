"""Names of stores and runs with blanks, non-ASCII letters and characters of URLs."""

from dataclasses import replace
from pathlib import Path

from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import Place, ended, last_line
from tests.chaos.rows.s3 import through_proxy

ROW = "names with blanks, non-ASCII, #"
ODD = "a store #1 ?x=1 % {ü} [é] 名"


@scenario(ROW, quick=True)
def odd_name_of_a_store(folder: Path) -> Held:
    place = Place(folder, store=folder / ODD)
    with place.run(steps=3) as driver:
        ended(driver)
    return place.held()


@scenario(ROW)
def odd_name_of_a_prefix_in_s3(folder: Path) -> Held:
    """It works, or is refused at once; the run is then made under a plain name."""
    with through_proxy(folder) as (place, _):
        plain, place.store = place.store, f"{place.store}/a store ü"
        with place.run(steps=3) as driver:
            code = ended(driver, 0, 1, 2)
        if code == 0:
            return place.held()
        assert last_line(driver).startswith("error: "), driver.said
        assert not place.record.acknowledged(), "it was refused after rows were acknowledged"
        place.store = plain
        with place.run(steps=3) as again:
            ended(again)
        return replace(place.held(), note=f"refused: {last_line(driver)}")
