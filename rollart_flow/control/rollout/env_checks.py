"""Checks of the values that environments return, with precise error messages.

The invariant: a checked answer is exactly the five (or two) values of the protocol in plain Python
types, the reward finite, the observation checked by `observation_checks`, and info["success"], if
given, a bool or None; any other answer raises an EnvironmentFailedError that names the value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from rollart_flow.control.rollout.observation_checks import (
    SHOWN,
    checked_observation,
    checked_step_observation,
    type_name,
)
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Image, Observation
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import NO_IMAGES
from rollart_flow.types.scalars import python_scalar

_RESET = f"({SHOWN}, info: mapping)"
_STEP = f"({SHOWN}, reward: finite number, terminated: bool, truncated: bool, info: mapping)"
_Value = TypeVar("_Value")
_SEQUENCES = tuple, list
_NUMBERS = int, float


class ResetAnswer(NamedTuple):
    """Checked return value of `reset`."""

    observation: Observation
    info: Mapping[str, object]


class StepAnswer(NamedTuple):
    """Checked return value of `step`."""

    observation: StepObservation
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, object]


def checked_reset(
    answer: object, call: str = "reset", known: Mapping[str, Image] = NO_IMAGES
) -> ResetAnswer:
    """Return the checked answer of `reset`, or raise an error that names the invalid value.

    Args:
        answer: returned value.
        call: name of the method in the error.
        known: images that a message in its JSON form may name.
    """
    observation, info = _unpacked(answer, 2, call, _RESET)
    shown = checked_observation(observation, call, _RESET, known)
    return ResetAnswer(shown, _info(info, call, _RESET))


def checked_step(
    answer: object, call: str = "step", known: Mapping[str, Image] = NO_IMAGES
) -> StepAnswer:
    """Return the checked answer of `step`, or raise an error that names the invalid value.

    Args: those of `checked_reset`.
    """
    observation, reward, terminated, truncated, info = _unpacked(answer, 5, call, _STEP)
    return StepAnswer(
        checked_step_observation(observation, call, _STEP, known),
        _reward(reward, call),
        _typed(python_scalar(terminated), bool, "terminated", call, _STEP),
        _typed(python_scalar(truncated), bool, "truncated", call, _STEP),
        _info(info, call, _STEP),
    )


def _unpacked(answer: object, count: int, call: str, expected: str) -> Sequence[object]:
    if isinstance(answer, _SEQUENCES) and len(answer) == count:
        return answer
    got = f"{len(answer)} values" if isinstance(answer, _SEQUENCES) else type_name(answer)
    raise EnvironmentFailedError(f"{call} returned {got}; it must return {expected}")


def _typed(value: object, kind: type[_Value], field: str, call: str, expected: str) -> _Value:
    if isinstance(value, kind):
        return value
    raise EnvironmentFailedError(
        f"{call} returned {type_name(value)} as {field}; it must return {expected}"
    )


def _reward(value: object, call: str) -> float:
    number = python_scalar(value)
    if isinstance(number, _NUMBERS) and type(number) is not bool and math.isfinite(number):
        return float(number)
    shown = f"the reward {number}" if isinstance(number, float) else f"{type_name(value)} as reward"
    raise EnvironmentFailedError(f"{call} returned {shown}; it must return {_STEP}")


def _info(value: object, call: str, expected: str) -> Mapping[str, object]:
    if type(value) is not dict and not isinstance(value, Mapping):
        raise EnvironmentFailedError(
            f"{call} returned {type_name(value)} as info; it must return {expected}"
        )
    if "success" not in value:
        return value
    success = python_scalar(value["success"])
    if success is None or isinstance(success, bool):
        return {**value, "success": success}
    if isinstance(success, int | float) and math.isfinite(success):
        return {**value, "success": bool(success)}
    raise EnvironmentFailedError(
        f"{call} returned {type_name(success)} as info['success']; it must be a bool"
    )
