"""Checks of what environments show: text, messages, tools, and values that make attempts branch.

The invariant: a checked value is in plain Python types and can be stored; any other raises an
EnvironmentFailedError that names it in one line.
"""

import json
from collections.abc import Mapping
from typing import Any

from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.text import one_line, storable, storable_values
from rollart_flow.types import Image, Message, Observation, Tool
from rollart_flow.types.branching import (
    Branching,
    Retry,
    Return,
    StepObservation,
    SubAgent,
)
from rollart_flow.types.messages import NO_IMAGES, message_from_json, tool_from_json

SHOWN = "observation: text or messages"
"""Form of an observation, for error messages."""
_MESSAGES = (str, tuple, list, Message)
_DEEPEST = 32
"""Values of `Return` within each other."""


def checked_observation(
    value: object, call: str, expected: str, known: Mapping[str, Image] = NO_IMAGES
) -> Observation:
    """Return a checked observation.

    Args:
        value: what the environment shows.
        call: name of the method, for the error.
        expected: everything that the method must return, for the error.
        known: images that a message in its JSON form may name.
    """
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Message):
        value = (value,)
    if not isinstance(value, tuple | list) or not value:
        raise EnvironmentFailedError(
            f"{call} returned {type_name(value)} as observation; it must return {expected}"
        )
    return tuple(_message(each, call, known) for each in value)


def checked_step_observation(
    value: object,
    call: str,
    expected: str,
    known: Mapping[str, Image] = NO_IMAGES,
    depth: int = 0,
) -> StepObservation:
    """Return a checked observation of `step`, which may make the attempt branch.

    Args: those of `checked_observation`, and how many `Return` are around it.
    """
    if isinstance(value, _MESSAGES):
        return checked_observation(value, call, expected, known)
    form = _fields(value) if isinstance(value, Branching) else value
    if not isinstance(form, Mapping):
        return checked_observation(form, call, expected, known)
    if depth > _DEEPEST:
        raise EnvironmentFailedError(f"{call} returned over {_DEEPEST} `Return` in each other")
    kind = form.get("branch")
    if kind == "sub_agent":
        shown = checked_observation(form.get("messages"), f"{call}: SubAgent", SHOWN, known)
        return SubAgent(shown, checked_tools(form.get("tools") or (), f"{call}: SubAgent"))
    if kind == "return":
        inner, where = form.get("observation"), f"{call}: Return"
        return Return(checked_step_observation(inner, where, SHOWN, known, depth + 1))
    if kind == "retry":
        turn = form.get("turn")
        if not isinstance(turn, int) or isinstance(turn, bool):
            raise EnvironmentFailedError(
                f"{call}: Retry has the turn {one_line(turn, 40)!r}; it must be a whole number"
            )
        shown = checked_observation(form.get("observation"), f"{call}: Retry", SHOWN, known)
        return Retry(turn, shown)
    return checked_observation(form, call, expected, known)


def checked_tools(value: Any, call: str) -> tuple[Tool, ...]:
    """Return the checked tools of an environment, which may be in their JSON form."""
    try:
        tools = [each if isinstance(each, Tool) else tool_from_json(each) for each in value]
    except (KeyError, TypeError, IndexError) as error:
        raise EnvironmentFailedError(f"{call}: tools are no list of `Tool`") from error
    return tuple(_tool(each, call) for each in tools)


def _tool(tool: Tool, call: str) -> Tool:
    """Return a tool whose texts and JSON Schema can be stored."""
    name, described, schema = tool.name, tool.description, tool.parameters
    if not isinstance(name, str) or not name or not isinstance(described, str):
        raise EnvironmentFailedError(
            f"{call}: a tool has {type_name(name)} as name and {type_name(described)} as "
            "description; they must be texts, and the name not empty"
        )
    try:
        if not isinstance(schema, Mapping):
            raise TypeError(f"it is {type_name(schema)}")
        parameters = storable_values(schema)
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        said = one_line(
            f"{call}: parameters of tool {name!r} are no JSON Schema: {one_line(error)}"
        )
        raise EnvironmentFailedError(said) from error
    return Tool(storable(name), storable(described), parameters)


def _fields(value: Branching) -> dict[str, object]:
    """Return a value that makes the attempt branch as its JSON form, with its own messages."""
    match value:
        case SubAgent(messages, tools):
            return {"branch": "sub_agent", "messages": messages, "tools": tools}
        case Return(observation):
            return {"branch": "return", "observation": observation}
        case Retry(turn, observation):
            return {"branch": "retry", "turn": turn, "observation": observation}


def _message(value: object, call: str, known: Mapping[str, Image]) -> Message:
    form = value
    try:
        if isinstance(value, Message):
            form = value.as_json()
            known = {image.image_id: image.checked() for image in value.images}
        if not isinstance(form, Mapping):
            raise EnvironmentFailedError(f"{call} returned {type_name(value)} as a message")
        message = message_from_json(storable_values(form), known)
    except (KeyError, TypeError, ValueError) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise EnvironmentFailedError(f"{call} returned no message: {said}") from error
    if any(image.png is None for image in message.images):
        raise EnvironmentFailedError(f"{call} returned an image that was never shown with its file")
    return message


def type_name(value: object) -> str:
    """Return the name of a value's type, for errors."""
    return "None" if value is None else type(value).__name__
