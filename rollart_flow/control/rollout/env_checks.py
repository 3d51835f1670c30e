"""Checks of the values that environments return, with precise error messages.

The invariant: a checked answer is exactly the five (or two) values of the protocol in plain Python
types, the reward finite, the observation `storable` text or messages, and info["success"], if
given, a bool or None; any other answer raises an EnvironmentFailedError that names the value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.text import one_line, storable
from rollart_flow.types import Image, Message, Observation, Tool
from rollart_flow.types.messages import NO_IMAGES, message_from_json, tool_from_json

_SHOWN = "observation: text or messages"
_RESET = f"({_SHOWN}, info: mapping)"
_STEP = f"({_SHOWN}, reward: finite number, terminated: bool, truncated: bool, info: mapping)"
_Value = TypeVar("_Value")


class ResetAnswer(NamedTuple):
    """Checked return value of `reset`."""

    observation: Observation
    info: Mapping[str, object]


class StepAnswer(NamedTuple):
    """Checked return value of `step`."""

    observation: Observation
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
    shown = _observation(observation, call, _RESET, known)
    return ResetAnswer(shown, _info(info, call, _RESET))


def checked_step(
    answer: object, call: str = "step", known: Mapping[str, Image] = NO_IMAGES
) -> StepAnswer:
    """Return the checked answer of `step`, or raise an error that names the invalid value.

    Args: those of `checked_reset`.
    """
    observation, reward, terminated, truncated, info = _unpacked(answer, 5, call, _STEP)
    return StepAnswer(
        _observation(observation, call, _STEP, known),
        _reward(reward, call),
        _typed(_plain(terminated), bool, "terminated", call, _STEP),
        _typed(_plain(truncated), bool, "truncated", call, _STEP),
        _info(info, call, _STEP),
    )


def _unpacked(answer: object, count: int, call: str, expected: str) -> Sequence[object]:
    if isinstance(answer, tuple | list) and len(answer) == count:
        return answer
    got = f"{len(answer)} values" if isinstance(answer, tuple | list) else _name(answer)
    raise EnvironmentFailedError(f"{call} returned {got}; it must return {expected}")


def _observation(
    value: object, call: str, expected: str, known: Mapping[str, Image]
) -> Observation:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Message):
        value = (value,)
    if not isinstance(value, tuple | list) or not value:
        raise EnvironmentFailedError(
            f"{call} returned {_name(value)} as observation; it must return {expected}"
        )
    return tuple(_message(each, call, known) for each in value)


def _message(value: object, call: str, known: Mapping[str, Image]) -> Message:
    form = value
    try:
        if isinstance(value, Message):
            form = value.as_json()
            known = {image.image_id: image.checked() for image in value.images}
        if not isinstance(form, Mapping):
            raise EnvironmentFailedError(f"{call} returned {_name(value)} as a message")
        message = message_from_json(_storable(form), known)
    except (KeyError, TypeError, ValueError) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise EnvironmentFailedError(f"{call} returned no message: {said}") from error
    if any(image.png is None for image in message.images):
        raise EnvironmentFailedError(f"{call} returned an image that was never shown with its file")
    return message


def _storable(value: Any) -> Any:
    """Return JSON values with texts that can be stored."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable(str(key)): _storable(inner) for key, inner in value.items()}
    return [*map(_storable, value)] if isinstance(value, tuple | list) else value


def checked_tools(value: Any, call: str) -> tuple[Tool, ...]:
    """Return the checked tools of an environment, which may be in their JSON form."""
    try:
        return tuple(each if isinstance(each, Tool) else tool_from_json(each) for each in value)
    except (KeyError, TypeError) as error:
        raise EnvironmentFailedError(f"{call}: tools are no list of `Tool`") from error


def _typed(value: object, kind: type[_Value], field: str, call: str, expected: str) -> _Value:
    if isinstance(value, kind):
        return value
    raise EnvironmentFailedError(
        f"{call} returned {_name(value)} as {field}; it must return {expected}"
    )


def _reward(value: object, call: str) -> float:
    number = _plain(value)
    if isinstance(number, int | float) and type(number) is not bool and math.isfinite(number):
        return float(number)
    shown = f"the reward {number}" if isinstance(number, float) else f"{_name(value)} as reward"
    raise EnvironmentFailedError(f"{call} returned {shown}; it must return {_STEP}")


def _info(value: object, call: str, expected: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise EnvironmentFailedError(
            f"{call} returned {_name(value)} as info; it must return {expected}"
        )
    if "success" not in value:
        return value
    success = _plain(value["success"])
    if success is None or isinstance(success, bool):
        return {**value, "success": success}
    if isinstance(success, int | float) and math.isfinite(success):
        return {**value, "success": bool(success)}
    raise EnvironmentFailedError(
        f"{call} returned {_name(success)} as info['success']; it must be a bool"
    )


def _plain(value: object) -> object:
    """Return the Python value of a NumPy scalar, and any other value unchanged."""
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__
