"""What environments answer, checked: whoever writes one gets told exactly what was wrong."""

import math
import numbers
from collections.abc import Mapping
from typing import NamedTuple

from rollart_flow.errors import EnvironmentFailedError


class ResetAnswer(NamedTuple):
    """What `reset` returned."""

    observation: str
    info: Mapping[str, object]


class StepAnswer(NamedTuple):
    """What `step` returned."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, object]


def checked_reset(answer: object) -> ResetAnswer:
    """(observation, info).

    Raises:
        EnvironmentFailedError: names the value that is not of its type.
    """
    observation, info = _parts(answer, "reset", ResetAnswer._fields)
    return ResetAnswer(_text(observation, "reset"), _info(info, "reset"))


def checked_step(answer: object) -> StepAnswer:
    """(observation, reward, terminated, truncated, info).

    Raises:
        EnvironmentFailedError: names the value that is not of its type.
    """
    observation, reward, terminated, truncated, info = _parts(answer, "step", StepAnswer._fields)
    return StepAnswer(
        _text(observation, "step"),
        _reward(reward),
        _flag(terminated, "terminated"),
        _flag(truncated, "truncated"),
        _info(info, "step"),
    )


def _parts(answer: object, call: str, names: tuple[str, ...]) -> tuple[object, ...]:
    if not isinstance(answer, tuple | list) or len(answer) != len(names):
        shown = (
            f"{len(answer)} values" if isinstance(answer, tuple | list) else type(answer).__name__
        )
        raise EnvironmentFailedError(f"{call} returned {shown}, not ({', '.join(names)})")
    return tuple(answer)


def _text(value: object, call: str) -> str:
    if isinstance(value, str):
        return value
    raise EnvironmentFailedError(
        f"{call} returned an observation of type {type(value).__name__}, not str"
    )


def _reward(value: object) -> float:
    if not isinstance(value, numbers.Real):
        raise EnvironmentFailedError(
            f"step returned a reward of type {type(value).__name__}, not float"
        )
    if not math.isfinite(value):
        raise EnvironmentFailedError(f"step returned the reward {value}, which is not finite")
    return float(value)


def _flag(value: object, name: str) -> bool:
    # numpy's booleans are no subclass of bool; numpy is not imported to recognize them.
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise EnvironmentFailedError(f"step returned {name} of type {type(value).__name__}, not bool")


def _info(value: object, call: str) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise EnvironmentFailedError(
        f"{call} returned info of type {type(value).__name__}, not a mapping"
    )
