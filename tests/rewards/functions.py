"""Reward functions, good and bad; the plain ones run in real processes."""

import asyncio
import os
from typing import Any

import numpy as np

from rollart_flow.types import Trajectory
from rollart_flow.types.verdicts import Verdict, VerdictKind


def turns(trajectory: Trajectory) -> float:
    return float(len(trajectory.turns))


def pid(trajectory: Trajectory) -> float:
    return float(os.getpid())


def with_parts(trajectory: Trajectory) -> Any:
    return np.float32(0.5), {"right": 1, "short": np.float64(-0.5)}


def with_verdicts(trajectory: Trajectory) -> Any:
    found = Verdict(key="style", kind=VerdictKind.REWARD, message="a line is too long")
    return 0.5, {"style": 0.25}, [found, {"key": "test_a", "passed": True}]


def with_infinite_verdict(trajectory: Trajectory) -> Any:
    return 0.5, None, [Verdict(key="test_a", seconds=float("inf"))]


async def in_the_loop(trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    return float(os.getpid())


def raises(trajectory: Trajectory) -> float:
    raise KeyError("gold answer")


async def raises_in_the_loop(trajectory: Trajectory) -> float:
    raise TimeoutError("the judge is not at home")


def hangs(trajectory: Trajectory) -> float:
    while True:
        pass


async def hangs_in_the_loop(trajectory: Trajectory) -> float:
    await asyncio.Event().wait()
    return 0.0


def exits(trajectory: Trajectory) -> float:
    os._exit(4)


def nan(trajectory: Trajectory) -> float:
    return float("nan")


def infinite_part(trajectory: Trajectory) -> Any:
    return 1.0, {"length": float("-inf")}


async def infinite_in_the_loop(trajectory: Trajectory) -> float:
    return float("inf")


def text(trajectory: Trajectory) -> Any:
    return "good"


def nothing(trajectory: Trajectory) -> Any:
    return None


def list_of_parts(trajectory: Trajectory) -> Any:
    return 1.0, [1.0]


def forgotten_await(trajectory: Trajectory) -> Any:
    return asyncio.get_event_loop_policy().new_event_loop().create_future()
