"""Maps of where the papers' mechanisms pay: their points, their cells, and what is said of them."""

import json
from pathlib import Path

import pytest

from rollart_flow.control.schedule.schedules import sync_plus
from rollart_flow.simulation.latencies import FixedLatency, Gaussian, LogNormal, Uniform
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.__main__ import main
from tests.benchmarks.paper.figures import Figure
from tests.benchmarks.paper.maps.grid import Cell, Place, condition, grid, reaches
from tests.benchmarks.paper.maps.mechanisms import MECHANISMS
from tests.benchmarks.paper.maps.varying import spread, varied
from tests.benchmarks.paper.published import figures
from tests.benchmarks.paper.scenarios import Scenarios
from tests.cli.shell import refused, said_by
from tests.simulation.scenarios import ONE_POOL

ALL = {figure.name: figure for figure in figures()}
HERE = Place(1.0, 1.0, 8, 1.0)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_papers_point_of_a_map_is_the_figure(name: str) -> None:
    mechanism = MECHANISMS[name]
    first, *others = grid(mechanism, Scenarios(), 2).values()
    figure = ALL[mechanism.figure]
    assert (first.cases, first.measure, first.published) == (
        figure.cases, figure.measure, figure.published,
    )  # fmt: skip
    assert len({first.ours, *(other.ours for other in others)}) > 1
    assert len({case.title for each in (first, *others) for case in each.cases}) == len(
        {case for each in (first, *others) for case in each.cases}
    )


def test_a_cell_has_longer_responses_more_spread_and_a_larger_batch() -> None:
    case = Case(ONE_POOL, sync_plus(), steps=2)
    cell = varied(Figure("f", case, case, None), lengths=2.0, variance=1.5, batch=4.0)
    (domain,), (before,) = cell.ours.scenario.domains, ONE_POOL.domains
    assert isinstance(domain.response, LogNormal)
    assert isinstance(before.response, LogNormal)
    assert domain.response.sigma == pytest.approx(1.5 * before.response.sigma)
    assert domain.response.most == 2 * before.response.most
    assert cell.ours.scenario.batch_size == 4 * ONE_POOL.batch_size
    assert cell.ours == cell.against


def test_spread_keeps_the_middle() -> None:
    assert spread(Gaussian(10.0, 5.0), 2.0) == Gaussian(10.0, 10.0)
    assert spread(Uniform(10.0, 30.0), 0.5) == Uniform(15.0, 25.0)
    assert spread(FixedLatency(3.0), 9.0) == FixedLatency(3.0)


def test_the_condition_names_the_axes_that_the_gain_needs() -> None:
    found = [
        Cell(HERE, 1.0),
        Cell(Place(4.0, 1.0, 8, 1.0), 1.9),
        Cell(Place(4.0, 1.0, 8, 0.25), 2.0),
        Cell(Place(1.0, 1.0, 8, 0.25), 1.1),
    ]
    said = condition(found, (2.0, 2.0))
    assert said == (
        "the published gain of 2.00 appears in 2 of 4 cells, only with lengths 4; "
        "the nearest is 1.90, at lengths 4"
    )
    assert condition(found, (3.0, 4.0)) == (
        "the published gain of 3.00-4.00 appears in none of 4 cells, whose gains go "
        "from 1.00 to 2.00, the largest at lengths 4, batch 0.25"
    )


def test_a_gain_beyond_the_published_one_is_not_that_gain() -> None:
    cells = [Cell(HERE, gain) for gain in (1.75, 2.2, 2.4, 3.0)]
    assert [reaches(cell, (2.0, 2.0)) for cell in cells] == [True, True, False, False]
    assert [reaches(cell, (1.5, 2.5)) for cell in cells] == [True, True, True, False]
    assert not reaches(Cell(HERE, 0.99), (1.1, 1.1))


def test_a_map_is_printed_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = said_by(main, "--map", "queue", "--size", "1", "--jobs", "1")
    assert said.code == 0
    stored = json.loads((tmp_path / "map_queue.json").read_text())
    (cell,) = stored["cells"]
    assert cell["gain"] > 1
    assert stored["point"] == {"lengths": 1.0, "variance": 1.0, "hardware": 16, "batch": 1.0}
    assert f"[{cell['gain']:.2f}]" in said.out


def test_another_mechanism_is_refused() -> None:
    told = refused(said_by(main, "--map", "magic"))
    assert told.startswith("MAP=magic: no such mechanism; there are affinity, pd")
