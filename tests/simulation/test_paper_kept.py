"""Results of the papers' simulations in a folder: what is found again, and by what."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.control.schedule.schedules import flash, sync_plus
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper import kept
from tests.benchmarks.paper.figures import Finished
from tests.benchmarks.paper.kept import described, key_of, simulate_cases
from tests.benchmarks.paper.published import figures
from tests.simulation.scenarios import ONE_POOL

CASE = Case(ONE_POOL, sync_plus(), steps=2)


def test_a_result_that_is_kept_is_not_simulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    first = simulate_cases([CASE, CASE], jobs=1, folder=tmp_path)

    def finish(case: Case) -> Finished:
        raise AssertionError(f"{case.title} was simulated again")

    monkeypatch.setattr(kept, "finish", finish)
    again = simulate_cases([CASE], jobs=1, folder=tmp_path, on_case=lambda *at: told.append(at))
    assert again == first
    assert told == [(1, 1)]
    with pytest.raises(AssertionError, match="seed 1 was simulated again"):
        simulate_cases([CASE, replace(CASE, seed=1)], jobs=1, folder=tmp_path)


def test_another_process_knows_a_case_by_the_same_key() -> None:
    script = (
        "from rollart_flow.control.schedule.schedules import flash\n"
        "from rollart_flow.simulation.report.comparison import Case\n"
        "from tests.benchmarks.paper.kept import key_of\n"
        "from tests.simulation.scenarios import ONE_POOL\n"
        "print(key_of(Case(ONE_POOL, flash(1), steps=2)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert said.stdout.strip() == key_of(Case(ONE_POOL, flash(1), steps=2))


def test_every_case_of_the_papers_has_a_key_of_its_own() -> None:
    cases = {case for figure in figures() for case in figure.cases}
    assert len({key_of(case) for case in cases}) == len(cases)


def test_what_only_an_address_stands_for_is_refused() -> None:
    with pytest.raises(TypeError, match="no name for <function"):
        described(lambda: 0)
    with pytest.raises(TypeError, match="no name for <object"):
        described([object()])
