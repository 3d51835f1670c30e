"""The conversations of a record, in each of the forms that others write.

Forms: {"messages": [...]} of the chat completions API, {"conversations": [{"from", "value"}]} of
ShareGPT, preferences {"prompt", "chosen", "rejected"}, as texts or as messages, and tokens
{"token_ids", "action_mask"} (`importing.tokens`). Invariant: what is no conversation raises
BadRecordError, whatever the record holds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.importing.records import BadRecordError
from rollart_flow.importing.tokens import TokenChain, states_tokens, token_chain
from rollart_flow.importing.values import (
    about_of,
    finite_number,
    kind_of,
    outcome_of,
    reward_parts,
)
from rollart_flow.text import one_line, storable_values
from rollart_flow.types import FinishReason, Image, Message, Outcome, Role, Tool
from rollart_flow.types.messages import message_from_json, tool_from_json

_ROLES = {"developer": "system", "function": "tool", "human": "user", "gpt": "assistant",
          "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant",
          "observation": "tool", "function_response": "tool"}  # fmt: skip
"""Roles of others by those of the chat completions API."""
_MALFORMED = (
    KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError,
    EnvironmentFailedError,
)  # fmt: skip
"""Errors that malformed messages and tools raise."""
_CALLS = ("function_call", "tool_call")
"""Roles of ShareGPT whose text is a call."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message, and whether it is trained on if the assistant wrote it."""

    message: Message
    trained: bool = True
    ended: bool = True
    """Whether a stop token ends it, rather than a limit of tokens."""


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """One conversation of a record."""

    said: tuple[Said, ...]
    tools: tuple[Tool, ...] = ()
    reward: float | None = None
    reward_parts: Mapping[str, float] | None = None
    solved: bool | None = None
    outcome: Outcome = Outcome.COMPLETED
    domain: str | None = None
    group: str | None = None
    """Group that the record names; None: its own."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Ids that the record names."""
    chain: TokenChain | None = None
    """Tokens, if the record states them and no messages."""


def conversations_of(record: object, folder: Path) -> list[ImportedConversation]:
    """Return the conversations of a record: one, or the preferred one and the rejected one.

    Args:
        record: object of JSON.
        folder: folder that the paths of images are relative to.

    Raises:
        BadRecordError: it is none of the forms.
    """
    if not isinstance(record, Mapping):
        raise BadRecordError(f"it is {kind_of(record)}, not an object")
    try:
        return _conversations(record, folder)
    except _MALFORMED as error:
        if isinstance(error, BadRecordError):
            raise
        said = f"{one_line(error)} is missing" if isinstance(error, KeyError) else one_line(error)
        raise BadRecordError(f"a message or tool is malformed: {said}") from error


def _conversations(record: Mapping[str, Any], folder: Path) -> list[ImportedConversation]:
    tools, about = _tools(record.get("tools")), about_of(record)
    group = next((about[n] for n in ("group_id", "group", "prompt_id") if n in about), None)
    domain = record.get("domain")
    if domain is not None and not isinstance(domain, str):
        raise BadRecordError(f"domain is {kind_of(domain)}, not a text")
    if "chosen" in record or "rejected" in record:
        pair = [_preference(record, name, folder) for name in ("chosen", "rejected")]
        return [
            ImportedConversation(
                said, tools, reward=reward, domain=domain, group=group, about=about
            )
            for said, reward in zip(pair, (1.0, 0.0), strict=True)
        ]
    said, chain = _said_or_tokens(record, folder)
    parts, solved = record.get("reward_parts"), record.get("solved")
    if solved is not None and not isinstance(solved, bool):
        raise BadRecordError(f"solved is {kind_of(solved)}, not true or false")
    return [
        ImportedConversation(
            said, tools, finite_number(record.get("reward"), "reward"), reward_parts(parts), solved,
            outcome_of(record.get("outcome")), domain, group, about, chain,
        )
    ]  # fmt: skip


def _said_or_tokens(
    record: Mapping[str, Any], folder: Path
) -> tuple[tuple[Said, ...], TokenChain | None]:
    """Return the messages of a record, or its tokens if it has no messages."""
    messages, turns = record.get("messages"), record.get("conversations")
    if messages is not None:
        return _checked(_messages(messages, folder)), None
    if turns is not None:
        return _checked(_messages(_share_gpt(turns, record.get("system")), folder)), None
    if states_tokens(record):
        return (), token_chain(record)
    raise BadRecordError("it has no messages, conversations, token_ids, or chosen and rejected")


def _preference(record: Mapping[str, Any], name: str, folder: Path) -> tuple[Said, ...]:
    if name not in record:
        raise BadRecordError(f"it has no {name}")
    answer, prompt = record[name], record.get("prompt")
    if isinstance(answer, str):
        if prompt is None:
            raise BadRecordError(f"{name} is a text, but there is no prompt")
        answer = [{"role": "assistant", "content": answer}]
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    before = [] if prompt is None else _messages(prompt, folder)
    after = _messages(answer, folder)
    if before and after[: len(before)] != before:
        after = [*before, *after]
    found = _checked(after)
    last = max(n for n, each in enumerate(found) if each.message.role is Role.ASSISTANT)
    start = len(before) if before else last  # without a prompt, only the last answer is compared
    return tuple(replace(e, trained=e.trained and n >= start) for n, e in enumerate(found))


def _messages(forms: object, folder: Path) -> list[Said]:
    if isinstance(forms, str):
        raise BadRecordError("messages are a text, not a list")
    if not isinstance(forms, Sequence):
        raise BadRecordError(f"messages are {kind_of(forms)}, not a list")
    return [_said(form, number, folder) for number, form in enumerate(forms, 1)]


def _said(form: object, number: int, folder: Path) -> Said:
    if not isinstance(form, Mapping):
        raise BadRecordError(f"message {number} is {kind_of(form)}, not an object")
    present = {name: value for name, value in form.items() if value is not None}
    role = present.get("role")
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    if role not in tuple(Role):
        raise BadRecordError(f"message {number} has the role {one_line(repr(role), 40)}")
    if "content" not in present and not present.get("tool_calls"):
        raise BadRecordError(f"message {number} has no content")
    parts = present.get("parts") or present.get("content", "")
    if isinstance(parts, Sequence) and not isinstance(parts, str):
        parts = [_part(part, folder) for part in parts]
    calls = [_call(call, number, at) for at, call in enumerate(present.get("tool_calls") or ())]
    weight = present.get("weight", 1)
    if weight not in (0, 1):
        raise BadRecordError(f"message {number} has the weight {one_line(weight, 40)}, not 0 or 1")
    whole = {**present, "role": role, "content": parts, "tool_calls": calls}
    message = message_from_json(storable_values(whole))
    if calls and message.role is not Role.ASSISTANT:
        raise BadRecordError(f"message {number} calls tools, but the {role} wrote it")
    return Said(message, bool(weight), present.get("finish_reason") != FinishReason.LENGTH)


def _part(part: Any, folder: Path) -> object:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    url = part["image"] if part.get("type") == "image" else part["image_url"]["url"]
    if not isinstance(url, str):
        raise BadRecordError(f"the url of an image is {kind_of(url)}")
    if not url.startswith("data:"):
        path = (folder / url).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise BadRecordError(f"there is no image {one_line(url, 80)} beside the file")
        url = Image.from_file(path.read_bytes()).data_url
    return {"type": "image_url", "image_url": {"url": url}}


def _call(call: Any, number: int, at: int) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise BadRecordError(
                f"message {number}: the arguments of a call are no JSON: {one_line(error)}"
            ) from error
    said = {name: call[name] for name in ("error", "text") if call.get(name) is not None}
    made = {"name": function["name"], "arguments": arguments or {}}
    return {"id": call.get("id") or f"import{number}x{at}", "function": made, **said}


def _share_gpt(turns: object, system: object) -> list[dict[str, Any]]:
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise BadRecordError(f"conversations are {kind_of(turns)}, not a list")
    found: list[dict[str, Any]] = []
    if isinstance(system, str) and system:
        found.append({"role": "system", "content": system})
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
            raise BadRecordError(f"turn {number} of conversations has no from and value")
        if turn["from"] in _CALLS:
            call = {"role": "assistant", "tool_calls": [json.loads(turn["value"])]}
            found.append(call)
        else:
            found.append({"role": turn["from"], "content": turn["value"]})
    return found


def _checked(said: Sequence[Said]) -> tuple[Said, ...]:
    """Return a conversation up to the last answer; refuse what no chat template takes."""
    answers = [n for n, each in enumerate(said) if each.message.role is Role.ASSISTANT]
    if not answers:
        raise BadRecordError("the assistant says nothing")
    if all(each.message.role in (Role.SYSTEM, Role.ASSISTANT) for each in said[: answers[0] + 1]):
        raise BadRecordError("the assistant speaks first; a conversation begins with the user")
    for before, after in pairwise(answers):
        if after == before + 1:
            raise BadRecordError(f"messages {before + 1} and {after + 1} are both the assistant's")
    return tuple(said[: answers[-1] + 1])


def _tools(given: object) -> tuple[Tool, ...]:
    if isinstance(given, str):
        try:
            given = json.loads(given or "[]")
        except (ValueError, RecursionError) as error:
            raise BadRecordError(f"tools are no JSON: {one_line(error)}") from error
    if given is None:
        return ()
    if not isinstance(given, Sequence):
        raise BadRecordError(f"tools are {kind_of(given)}, not a list")
    found = []
    for each in given:
        function = {"description": "", "parameters": {}, **each.get("function", each)}
        found.append(tool_from_json({"function": storable_values(function)}))
    return tuple(found)
