"""`rollart show RUN --accounting` prints what a run spent, with prices of the pipeline or given."""

import json
from pathlib import Path

import pytest

from rollart_flow.store import Run
from tests.cli.shell import refused, rollart
from tests.runs import small_run


def test_it_prints_fates_use_transfers_and_costs(demo_run: Run) -> None:
    said = rollart("show", demo_run.uri, "--accounting", "--price", "CPU=0.5")
    assert said.code == 0
    for part in ("what became of the attempts", "engine workers", "between the stages", "trained",
                 "resource classes", "bound by"):  # fmt: skip
        assert part in said.out


def test_a_price_that_is_given_takes_the_place_of_the_pipelines(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    first = json.loads(rollart("show", run.uri, "--accounting", "--json").out)
    assert (first["cost"], first["unpriced"]) == (None, ["CPU"])
    priced = json.loads(rollart("show", run.uri, "--price", "CPU=36", "--json").out)
    hours = priced["costs"][0]["device_hours"]
    assert priced["cost"] == pytest.approx(36 * hours)
    assert {row["fate"] for row in priced["fates"]} == {"trained", "failed", "stale", "redundant"}


@pytest.mark.parametrize("text", ["CPU", "CPU=", "CPU=cheap", "=1", "CPU=-1", "CPU=inf"])
def test_a_wrong_price_is_one_line(tmp_path: Path, text: str) -> None:
    run = small_run(tmp_path)
    assert "price" in refused(rollart("show", run.uri, "--price", text))
