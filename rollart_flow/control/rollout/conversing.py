"""The conversation of one attempt: which codec it uses, which calls can be made, what is stored.

Calls that cannot be made do not reach the environment: their errors are answers to the policy. The
messages are stored as JSON beside the tokens, each with the number of its turn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollart_flow.control.protocols import ChatCodec, Codec, Conversation
from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Image, Message, Observation, Tool, ToolCall
from rollart_flow.types.messages import messages_of, tool_result


class TextConversation:
    """Implements `Conversation` for environments that show text and take text."""

    __slots__ = ("_begun", "_codec")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._begun = False

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        """Return the tokens of an observation."""
        if not isinstance(observation, str):
            raise SettingsError("this codec converts text only, not messages")
        first, self._begun = not self._begun, True
        return self._codec.encode_observation(observation, first=first, ended=ended)

    def act(self, token_ids: Sequence[int]) -> Action:
        """Return the text of generated tokens as an action."""
        return Action(self._codec.decode(token_ids))

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        """Return None: text is not rendered again."""
        return None


def converse(codec: Codec, tools: Sequence[Tool]) -> Conversation:
    """Begin a conversation of messages.

    Raises:
        SettingsError: the codec converts text only, or its template has no place for tools.
    """
    if not isinstance(codec, ChatCodec):
        raise SettingsError("this codec converts text only, not messages")
    return codec.converse(tools)


def _call_error(tools: Mapping[str, Tool], call: ToolCall) -> str | None:
    """Return why a call cannot be made, as one line for the policy, or None."""
    from jsonschema import Draft202012Validator  # loaded where tools are called

    if call.error is not None:
        return call.error
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        return one_line(f"there is no tool {call.name!r}; there are: {known}")
    validator = Draft202012Validator(dict(tool.parameters))
    for error in validator.iter_errors(dict(call.arguments)):
        where = ".".join(str(part) for part in error.absolute_path)
        return one_line(f"{where}: {error.message}" if where else error.message)
    return None


def made(action: Action) -> Action:
    """Return the action with only those of its calls that can be made."""
    calls = tuple(call for call in action.tool_calls if call.error is None)
    return action if len(calls) == len(action.tool_calls) else replace(action, tool_calls=calls)


def with_refusals(action: Action, observation: Observation) -> Observation:
    """Return an observation together with the answers to the calls that could not be made.

    The answers of all calls come first, in the order of the calls, as chat templates want them.
    """
    refused = {
        call.call_id: tool_result(call, f"error: {call.error}")
        for call in action.tool_calls
        if call.error is not None
    }
    if not refused:
        return observation
    shown = messages_of(observation) if observation else ()
    results = refused | {each.call_id: each for each in shown if each.call_id is not None}
    order = [call.call_id for call in action.tool_calls if call.call_id in results]
    rest = [each for each in shown if each.call_id not in order]
    return (*(results[call_id] for call_id in order), *rest)


class Transcript:
    """The messages of an attempt, whose calls it checks and counts.

    Args:
        tools: tools that the policy may call; None if the environment takes text.
    """

    __slots__ = ("_calls", "_errors", "_forms", "_tools")

    def __init__(self, tools: Sequence[Tool] | None) -> None:
        self._tools = None if tools is None else {tool.name: tool for tool in tools}
        self._forms: list[dict[str, Any]] = []
        self._calls = 0
        self._errors = 0

    def add(self, turn: int, messages: Sequence[Message]) -> None:
        """Add messages of a turn."""
        self._forms += [{"turn": turn, **message.as_json()} for message in messages]

    def checked(self, action: Action) -> Action:
        """Return the action with an error at each call that cannot be made."""
        if not action.tool_calls:
            return action
        tools = self._tools or {}
        calls = tuple(replace(call, error=_call_error(tools, call)) for call in action.tool_calls)
        self._calls += len(calls)
        self._errors += sum(call.error is not None for call in calls)
        return replace(action, tool_calls=calls)

    def columns(self) -> dict[str, Any]:
        """Return the fields of `Trajectory` that hold the conversation."""
        tools = self._tools
        return {
            "messages": _json(self._forms),
            "tools": None if tools is None else _json([each.as_json() for each in tools.values()]),
            "tool_calls": self._calls,
            "tool_errors": self._errors,
        }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_of(observation: Observation) -> str:
    """Return an observation as the text that the column `turns` holds."""
    if isinstance(observation, str):
        return observation
    return "\n".join(f"{message.role}: {message.shown}" for message in observation)


def images_of(observation: Observation) -> tuple[Image, ...]:
    """Return the images of an observation in their order."""
    if isinstance(observation, str):
        return ()
    return tuple(image for message in observation for image in message.images)
