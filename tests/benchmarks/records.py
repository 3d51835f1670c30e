"""The results of benchmarks: the rows of `bench.json`."""

from typing import TypedDict


class CannotRunError(Exception):
    """This machine lacks what a benchmark compares with; the message names it."""


class Record(TypedDict):
    """One figure."""

    name: str
    value: float | None
    """Null: it could not be measured."""
    unit: str
    goal: str | None
    """The goal, such as ">= 2500"; null: the figure has none."""
    holds: bool | None
    peer: str | None
    """Other measurements of the same run, for comparison."""
    skipped: str | None
    """Reason why it could not be measured."""


def record(
    name: str,
    value: float,
    unit: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    peer: str | None = None,
) -> Record:
    """One figure, with at most one goal."""
    goal, holds = None, None
    if at_least is not None:
        goal, holds = f">= {at_least:g}", value >= at_least
    elif at_most is not None:
        goal, holds = f"<= {at_most:g}", value <= at_most
    digits = 3 if abs(value) < 1000 else 0
    return Record(
        name=name, value=round(value, digits), unit=unit, goal=goal, holds=holds, peer=peer,
        skipped=None,
    )  # fmt: skip


def unmeasured(name: str, reason: str, *, holds: bool | None = None) -> Record:
    """A row in place of figures; `holds` is False if the benchmark failed."""
    return Record(name=name, value=None, unit="", goal=None, holds=holds, peer=None, skipped=reason)
