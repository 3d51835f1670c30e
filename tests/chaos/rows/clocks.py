"""Clocks that are set while a run goes on, or that differ between machines."""

import os
from pathlib import Path
from unittest.mock import patch

import polars as pl

from tests.chaos.faults.clock import Clock
from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import PIPELINE, Place, ended
from tests.cli.shell import served_reward

ROW = "clock +-1 h, +-1 day"
OFFSETS = ("+1h", "-1h", "+1d", "-1d")
LATE = "timed_out"


def last_reward(trajectory):  # type: ignore[no-untyped-def]
    """The reward that the endpoint computes."""
    return float(len(trajectory.token_ids) % 3)


@scenario(ROW)
def clock_of_the_driver(folder: Path) -> Held:
    """The clock is set four times; nothing is removed early, and no attempt is late."""
    clock = Clock(folder / "clock")
    place = Place(folder, environment=clock.environment, forked=False)
    steps = 40
    with place.run(steps=steps) as driver:
        for number, offset in enumerate(OFFSETS):
            place.wait_for_tenth(driver, 2 * number + 1)
            place.record.fault(offset)
            clock.step(offset)
        ended(driver)
    held = place.held()
    rows = (
        place.opened().trajectories.select("seq", "committed_at", "outcome").sort("seq").collect()
    )
    assert rows["committed_at"].is_sorted(), "rows were committed before earlier ones"
    span = rows["committed_at"][-1] - rows["committed_at"][0]
    assert span.days == 1, "the clock was not set"
    assert rows.filter(pl.col("outcome") == LATE).is_empty()
    return held


@scenario(ROW)
def clock_of_a_reward_endpoint(folder: Path) -> Held:
    """The clock of the endpoint is a day behind, and then a day ahead of the run's."""
    text = PIPELINE.replace("reward(trajectories, tokens_seen)", 'reward(trajectories, "<url>")')
    clock = Clock(folder / "clock")
    place = Place(folder)
    clock.step("-1d")
    with patch.dict(os.environ, clock.environment), served_reward(f"{__name__}:last_reward") as url:
        assert url.startswith("http"), url
        with place.run(text, steps=30, values={"url": url}) as driver:
            place.wait_for_tenth(driver, 2)
            place.record.fault("+1d")
            clock.step("+1d")
            ended(driver)
    outcomes = place.opened().trajectories.select("outcome").collect()["outcome"]
    assert LATE not in outcomes, "rewards were late"
    return place.held()
