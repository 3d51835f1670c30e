"""The conversation of one branch: which codec it uses, which calls can be made, what is stored.

Calls that cannot be made do not reach the environment: their errors are answers to the policy. The
messages are stored as JSON beside the tokens, each with the number of its turn.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollart_flow.control.environment import Codec, Conversation, takes_messages
from rollart_flow.control.rollout.recorder import ChainTurn, Recorder
from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Message, Observation, Tool, ToolCall
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
    if not takes_messages(codec):
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


def without(action: Action, call_ids: Collection[str]) -> Action:
    """Return the action without the calls of these ids."""
    if not call_ids:
        return action
    calls = tuple(call for call in action.tool_calls if call.call_id not in call_ids)
    return replace(action, tool_calls=calls)


def refusals(action: Action) -> dict[str, Message]:
    """Return the answers to the calls that cannot be made, by id."""
    return {
        call.call_id: tool_result(call, f"error: {call.error}")
        for call in action.tool_calls
        if call.error is not None
    }


def with_results(turn: ChainTurn | None, observation: Observation) -> Observation:
    """Return an observation with the answers to calls that the environment did not get.

    The answers of all calls come first, in the order of the calls, as chat templates want them.
    """
    if turn is None or not turn.results or turn.action is None:
        return observation
    shown = messages_of(observation) if observation else ()
    answered = {each.call_id: each for each in shown if each.call_id is not None}
    results = {**turn.results, **answered}
    order = [call.call_id for call in turn.action.tool_calls if call.call_id in results]
    rest = [each for each in shown if each.call_id not in order]
    return (*(results[call_id] for call_id in order), *rest)


class Transcript:
    """The calls of a branch, which it checks and counts, and the form in which it is stored.

    Args:
        tools: tools that the policy may call; None if the environment takes text.
    """

    __slots__ = ("_calls", "_errors", "_tools")

    def __init__(self, tools: Sequence[Tool] | None) -> None:
        self._tools = None if tools is None else {tool.name: tool for tool in tools}
        self._calls = 0
        self._errors = 0

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call."""
        return tuple((self._tools or {}).values())

    def checked(self, action: Action) -> Action:
        """Return the action with an error at each call that cannot be made."""
        if not action.tool_calls:
            return action
        tools = self._tools or {}
        calls = tuple(replace(call, error=_call_error(tools, call)) for call in action.tool_calls)
        self._calls += len(calls)
        self._errors += sum(call.error is not None for call in calls)
        return replace(action, tool_calls=calls)

    def columns(self, recorder: Recorder) -> dict[str, Any]:
        """Return the fields of `Trajectory` that hold the conversation of a chain."""
        before = [form for turn in recorder.before for form in _forms(turn, others=True)]
        own = [form for turn in recorder.own for form in _forms(turn)]
        tools = None if self._tools is None else _json([each.as_json() for each in self.tools])
        return {
            "messages": _json(before + own),
            "tools": tools,
            "tool_calls": self._calls,
            "tool_errors": self._errors,
        }


def _forms(turn: ChainTurn, *, others: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn; `others`: its action is that of another branch."""
    for message in messages_of(turn.observation):
        yield {"turn": turn.number, **message.as_json()}
    if turn.action is None:
        return
    form: dict[str, Any] = {"turn": turn.number, **turn.action.as_message().as_json()}
    if others and not turn.rendered:
        form["tokens"] = [turn.action_start, turn.end]
        if not turn.ended:
            form["ended"] = False
    yield form


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
