"""The scenarios of `make chaos` that cost least; `make chaos` plays all of them."""

from pathlib import Path

import pytest

from tests.chaos.matrix import CannotInjectError, Scenario, load

QUICK = [each for each in load().values() if each.quick]


@pytest.mark.parametrize("scenario", QUICK, ids=lambda each: each.name)
def test_nothing_is_lost_or_doubled(scenario: Scenario, tmp_path: Path) -> None:
    try:
        held = scenario.play(tmp_path)
    except CannotInjectError as error:
        pytest.skip(str(error))
    assert held.holds, held
