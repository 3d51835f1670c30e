"""Hostile values from environments and rewards: an outcome each, and the run goes on."""

from dataclasses import replace
from pathlib import Path

import polars as pl

from tests.chaos.held import Held
from tests.chaos.matrix import scenario
from tests.chaos.place import PIPELINE, Place, ended

ROW = "hostile values"
STEPS = 48
HOSTILE = """
from dataclasses import replace

import numpy as np


class Typed(Exception):
    def __str__(self):
        return 5


RESETS = {
    1: lambda: ("\\ud83d", {}),
    2: lambda: (5, {}),
    3: lambda: "no pair",
    4: lambda: 1 / 0,
}
STEPS = {
    5: lambda: ("again", float("nan"), True, False, {}),
    6: lambda: ("again", float("inf"), True, False, {}),
    7: lambda: ("again", np.ones(3), True, False, {}),
    8: lambda: ("again", 1.0, True, False, {"success": np.zeros(2)}),
    9: lambda: ("again", 1.0, True, False, [1, 2]),
    10: lambda: ("\\ud83d\\udc00", 1.0, True, False, {}),
    11: lambda: (None, 1.0, True, False, {}),
    12: lambda: (b"bytes", 1.0, True, False, {}),
    13: lambda: "no tuple",
}
ERRORS = {14: "\\ud83d", 15: "x" * 10_000_000, 16: "", 17: "a\\nb\\x1b]52;c;aGk=\\x07"}
REWARDS = {
    18: lambda: float("nan"),
    19: lambda: float("-inf"),
    20: lambda: "one",
    21: lambda: np.ones(2),
    22: lambda: (1.0, {"\\ud83d": 1.0}),
    23: lambda: (1.0, {"part": object()}),
    24: lambda: {}["x" * 10_000_000],
    25: lambda: None,
    26: lambda: 10 ** 400,
}


class HostileEnvironment(CoinEnvironment):
    def reset(self, seed, task):
        self.number = int(task)
        if self.number in RESETS:
            return RESETS[self.number]()
        return super().reset(seed, task)

    def step(self, action):
        if self.number in ERRORS:
            raise RuntimeError(ERRORS[self.number])
        if self.number in STEPS:
            return STEPS[self.number]()
        return super().step(action)


@dataclass(frozen=True)
class Hostile(Coin):
    environment: ClassVar[type[Environment]] = HostileEnvironment

    def make(self):
        return HostileEnvironment()

    def tasks(self, split, seed):
        # One of four tasks is hostile, since a run ends where every attempt fails.
        for count, task in enumerate(super().tasks(split, seed)):
            hostile = split is Split.TRAIN and count % 4 == 0
            yield replace(task, payload=str(count // 4 if hostile else 0))


async def hostile_reward(trajectory):
    number = int(trajectory.task)
    if number in REWARDS:
        return REWARDS[number]()
    return await tokens_seen(trajectory)
"""
TASKS = 27


@scenario(ROW)
def hostile_environments_and_rewards(folder: Path) -> Held:
    place = Place(folder)
    text = HOSTILE + PIPELINE.replace("tasks(Coin()", "tasks(Hostile()")
    text = text.replace("reward(trajectories, tokens_seen)", "reward(trajectories, hostile_reward)")
    with place.run(text, steps=STEPS) as driver:
        ended(driver)
    rows = place.opened().trajectories.filter(split="train").select("task_id", "outcome", "error")
    met = rows.filter(pl.col("task_id").is_in([f"toss-{4 * n}" for n in range(1, TASKS)])).collect()
    assert met["task_id"].n_unique() == TASKS - 1, "not all were met"
    lengths = met["error"].str.len_bytes()
    assert (lengths.max() or 0) < 10_000, "an error is stored without a limit"  # type: ignore[operator]
    failed = met.filter(pl.col("outcome") == "failed").height
    return replace(place.held(), note=f"{failed} of {met.height} hostile attempts failed")
