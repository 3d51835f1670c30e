"""Rows of `trajectories` as conversations in the form of the chat completions API.

Arguments of calls are JSON texts, as in that API. An assistant's message has the weight 0 where its
row does not train on it, since another branch sampled it or its tokens are withheld. A call that is
not well-formed has its `error` and `text` beside it; an answer that was cut at its limit of tokens
has the finish_reason "length".
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

COLUMNS = (
    "seq", "trajectory_id", "episode_id", "branch", "group_id", "attempt", "task_id", "domain",
    "split", "outcome", "reason", "reward", "reward_parts", "solved", "policy_version_start",
    "policy_version_end", "task",
)  # fmt: skip
"""Columns of `trajectories` that each row of a data set has."""
READ = (*COLUMNS, "messages", "tools", "turns", "images", "action_mask")
"""Columns that a conversation is made of."""

_LENGTH = "length"
"""Reason of an answer that ended at its limit of tokens, without a stop token."""
_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
        ("error", pa.string()),
        ("text", pa.string()),
    ]
)
_PART = pa.struct([("type", pa.string()), ("text", pa.string()), ("image", pa.string())])
MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("parts", pa.list_(_PART)),
        ("reasoning_content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
        ("weight", pa.int8()),
        ("finish_reason", pa.string()),
    ]
)
"""A message in Parquet; `parts` has its text and images in their order, null without images."""


def conversation_of(row: Mapping[str, Any], image_folder: str) -> dict[str, Any]:
    """Return a row as a conversation.

    Args:
        row: columns of `READ`, with `trained` in place of the mask: by turn, whether its action is
            trained on.
        image_folder: folder of the images' files, relative to the data set.
    """
    turns = row["turns"]
    text = row["messages"]
    stored = json.loads(text) if text else _of_turns(turns)
    numbers = sorted({message.get("turn", 0) for message in stored})
    numbers = numbers[len(numbers) - len(turns) :]
    own = {n for n, trained in zip(numbers, row["trained"], strict=False) if trained}
    cut = {n for n, turn in zip(numbers, turns, strict=False) if turn["finish_reason"] == _LENGTH}
    return {
        **{name: row[name] for name in COLUMNS},
        "messages": [_message(message, own, cut, image_folder) for message in stored],
        "tools": None if row["tools"] is None else json.loads(row["tools"]),
        "images": [f"{image_folder}/{name}.png" for name in row["images"] or ()] or None,
    }


def in_parquet(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversation in the types of Parquet, where each message has the same fields."""
    tools = conversation["tools"]
    return {
        **conversation,
        "messages": [_flat(message) for message in conversation["messages"]],
        "tools": None if tools is None else json.dumps(tools, ensure_ascii=False),
    }


def in_json(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversation as an object of JSON, without what is null."""
    found = {name: value for name, value in conversation.items() if value is not None}
    if "reward_parts" in found:
        found["reward_parts"] = {part["name"]: part["value"] for part in found["reward_parts"]}
    return found


def _of_turns(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the turns of an environment that shows text and takes text as messages."""
    said: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        said += [
            {"turn": number, "role": "user", "content": turn["observation"]},
            {"turn": number, "role": "assistant", "content": turn["action"]},
        ]
    return said


def _message(
    message: Mapping[str, Any], own: set[int], cut: set[int], image_folder: str
) -> dict[str, Any]:
    found = {name: message[name] for name in message if name not in ("turn", "tokens", "ended")}
    content = found["content"]
    if isinstance(content, list):
        found["content"] = [_with_file(part, image_folder) for part in content]
    if calls := found.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in calls]
    if message["role"] == "assistant" and message.get("turn", 0) not in own:
        found["weight"] = 0
    if message["role"] == "assistant" and message.get("turn", 0) in cut:
        found["finish_reason"] = _LENGTH
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    written = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {"name": function["name"], "arguments": written}}


def _with_file(part: Mapping[str, Any], image_folder: str) -> dict[str, Any]:
    if part["type"] != "image_url":
        return dict(part)
    name = part["image_url"]["url"].rpartition(":")[2]
    return {"type": "image_url", "image_url": {"url": f"{image_folder}/{name}.png"}}


def _flat(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if not isinstance(content, list):
        return dict(message)
    parts = [
        {"type": "text", "text": part["text"], "image": None}
        if part["type"] == "text"
        else {"type": "image", "text": None, "image": part["image_url"]["url"]}
        for part in content
    ]
    text = "".join(part["text"] or "" for part in parts)
    return {**message, "content": text, "parts": parts}
