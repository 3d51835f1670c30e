"""Prices of a pipeline: checked when it is built, recorded with its settings, overridden."""

from typing import Any

import pytest

from rollart_flow import Pipeline
from rollart_flow.errors import PipelineError, SettingsError
from tests.pipeline.parts import two_domains


def test_prices_are_recorded_and_overridden() -> None:
    pipeline = Pipeline("p", *two_domains().outputs, prices={"H800": 2})
    assert pipeline.settings()["prices"] == {"H800": 2.0}
    changed = pipeline.override({"pipeline.prices": '{"H20": 1.5}'})
    assert changed.prices == {"H20": 1.5}
    assert changed.override({"pipeline.seed": "3"}).prices == {"H20": 1.5}
    assert two_domains().settings()["prices"] == {}


@pytest.mark.parametrize("prices", [{"H800": -1}, {"H800": "2"}, {"": 1}, {1: 1}, [1], {"a": True}])
def test_wrong_prices_are_refused_when_the_pipeline_is_built(prices: Any) -> None:
    with pytest.raises(PipelineError, match="price"):
        Pipeline("p", *two_domains().outputs, prices=prices)


def test_wrong_prices_of_the_shell_are_refused() -> None:
    with pytest.raises(SettingsError, match="prices"):
        two_domains().override({"pipeline.prices": "cheap"})
