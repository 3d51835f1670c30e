"""The scenarios of `make chaos`: one or several for each row of the matrix of faults."""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.held import Held

Play = Callable[[Path], Held]
"""A function that plays a scenario in an empty folder."""


class CannotInjectError(Exception):
    """This machine lacks what a fault takes; the message names it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault at one place."""

    name: str
    row: str
    """Row of the matrix that it belongs to."""
    quick: bool
    """Whether it is part of `make test` too."""
    limit_s: float
    """Longest time that it may take."""
    waits: bool
    """Whether it mostly waits, so that others can compute meanwhile."""
    play: Play


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    row: str, *, quick: bool = False, limit_s: float = 240, waits: bool = False
) -> Callable[[Play], Play]:
    """Register a function as a scenario under its name."""

    def register(play: Play) -> Play:
        name = play.__name__.replace("_", "-")
        assert name not in SCENARIOS, f"two scenarios {name}"
        SCENARIOS[name] = Scenario(name, row, quick, limit_s, waits, play)
        return play

    return register


def load() -> dict[str, Scenario]:
    """All scenarios by name."""
    for path in sorted((Path(__file__).parent / "rows").glob("*.py")):
        importlib.import_module(f"tests.chaos.rows.{path.stem}")
    return SCENARIOS


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 120) -> None:
    """Wait for what another process does that no event tells of.

    Raises:
        AssertionError: it did not happen within the limit.
    """
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit_s:g} s"
        time.sleep(0.05)
