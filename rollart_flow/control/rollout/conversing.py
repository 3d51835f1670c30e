"""The conversation of one branch: which codec it uses, which calls can be made, what is stored.

Calls that cannot be made do not reach the environment: their errors are answers to the policy. The
messages are stored as JSON beside the tokens, each with the number of its turn.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollart_flow.control.environment import Codec, Conversation, Retold, takes_messages
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.interrupts import failed
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.types import Action, Message, Observation, Reason, Tool, ToolCall
from rollart_flow.types.messages import messages_of, tool_result
from rollart_flow.types.token_ids import TokenIds


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

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        """Raise SettingsError: text has no messages that are rendered again."""
        raise SettingsError("this codec converts text only, not messages")

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


class _CallChecks:
    """Checks of calls, with one validator for each tool that was called."""

    __slots__ = ("_tools", "_validators")

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self._validators: dict[str, Any] = {}

    def error_of(self, call: ToolCall) -> str | None:
        """Return why a call cannot be made, as one line for the policy, or None.

        Raises:
            AttemptEndedError: the tool's own schema is faulty.
        """
        if call.error is not None:
            return call.error
        if call.name not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            return one_line(f"there is no tool {call.name!r}; there are: {known}")
        try:
            fault = next(self._validator(call.name).iter_errors(dict(call.arguments)), None)
        except Exception as error:  # jsonschema raises several kinds for a faulty schema
            doing = f"reading the JSON Schema of tool {call.name!r}"
            raise failed(Reason.ENVIRONMENT_ERROR, doing, error) from error
        if fault is None:
            return None
        where = ".".join(str(part) for part in fault.absolute_path)
        return one_line(f"{where}: {fault.message}" if where else fault.message)

    def _validator(self, name: str) -> Any:
        from jsonschema import Draft202012Validator  # loaded where tools are called

        found = self._validators.get(name)
        if found is None:
            found = Draft202012Validator(dict(self._tools[name].parameters))
            self._validators[name] = found
        return found


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
    """The calls of a branch, which it checks, and the form in which it is stored.

    Args:
        tools: tools that the policy may call; None if the environment takes text.
    """

    __slots__ = ("_checks", "_tools")

    def __init__(self, tools: Sequence[Tool] | None) -> None:
        self._tools = None if tools is None else {tool.name: tool for tool in tools}
        self._checks = _CallChecks(self._tools or {})

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call."""
        return tuple((self._tools or {}).values())

    def checked(self, action: Action) -> Action:
        """Return the action with an error at each call that cannot be made.

        Raises:
            AttemptEndedError: the schema of a tool is faulty.
        """
        if not action.tool_calls:
            return action
        error_of = self._checks.error_of
        calls = tuple(replace(call, error=error_of(call)) for call in action.tool_calls)
        return replace(action, tool_calls=calls)

    def columns(self, recorder: Recorder) -> dict[str, Any]:
        """Return the fields of `Trajectory` that hold the conversation of a chain."""
        before = [form for turn in recorder.before for form in _forms(turn, others=True)]
        own = [form for turn in recorder.own for form in _forms(turn)]
        tools = None if self._tools is None else _json([each.as_json() for each in self.tools])
        calls = _calls_of(recorder)
        return {
            "messages": _json(before + own),
            "tools": tools,
            "tool_calls": len(calls),
            "tool_errors": sum(call.error is not None for call in calls),
        }


def _calls_of(recorder: Recorder) -> list[ToolCall]:
    """Return the calls of the actions that a branch sampled."""
    actions = (turn.action for turn in recorder.own)
    return [call for action in actions if action is not None for call in action.tool_calls]


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
