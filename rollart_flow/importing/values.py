"""Checked values of a record beside its conversation: ids, rewards and the outcome."""

import math
from collections.abc import Mapping
from typing import Any

from rollart_flow.importing.records import BadRecordError
from rollart_flow.text import one_line, storable
from rollart_flow.types import TRAINABLE, Outcome


def about_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids that a record states, by their names.

    Raises:
        BadRecordError: one is neither a text nor a number.
    """
    names = ("group_id", "group", "prompt_id", "id", "task_id", "trajectory_id", "run")
    found = {}
    for name in names:
        value = record.get(name)
        if isinstance(value, str | int) and value != "":
            found[name] = one_line(storable(str(value)), 500)
        elif value is not None and value != "":
            raise BadRecordError(f"{name} is {kind_of(value)}, not a text or a number")
    return found


def finite_number(value: object, name: str) -> float | None:
    """Return a number; None for null.

    Raises:
        BadRecordError: it is none, or is not finite.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRecordError(f"{name} is {one_line(repr(value), 40)}, not a finite number")
    return float(value)


def reward_parts(given: Any) -> dict[str, float] | None:
    """Return the parts of a reward, given as an object or as a list of names and values.

    Raises:
        BadRecordError: a part is no finite number.
    """
    if given is None:
        return None
    pairs = (
        given.items() if isinstance(given, Mapping) else ((p["name"], p["value"]) for p in given)
    )
    return {
        one_line(name, 200): finite_number(value, "reward_parts") or 0.0 for name, value in pairs
    }


def outcome_of(given: object) -> Outcome:
    """Return the outcome of a conversation, completed where it names none that is trained on."""
    known = {str(outcome): outcome for outcome in TRAINABLE}
    return known.get(given, Outcome.COMPLETED) if isinstance(given, str) else Outcome.COMPLETED


def kind_of(value: object) -> str:
    """Return the type of a value in words, for messages."""
    return "null" if value is None else f"of type {type(value).__name__}"
