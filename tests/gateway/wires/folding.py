"""What a client that follows a wire's documents makes of a stream: the whole JSON again."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.wires.base import ProviderWire
from rollart_flow.gateway.wires.events import json_bytes


def data_of(stream: Iterable[bytes]) -> list[dict[str, Any]]:
    """The data of server-sent events, without the mark of the end."""
    blocks = b"".join(stream).decode().split("\n\n")
    lines = [line for block in blocks for line in block.split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def fold_chat(events: list[dict[str, Any]]) -> Any:
    """The message of chat completions."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    for event in events:
        for choice in event["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    calls = [{k: v for k, v in call.items() if k != "index"} for call in value]
                    message[name] = calls
                elif value and name != "role":
                    message[name] = (message.get(name) or "") + value
    return message


def fold_responses(events: list[dict[str, Any]]) -> Any:
    """The items of responses, from their own events."""
    texts: dict[int, str] = {}
    items = {}
    for event in events:
        if event["type"].endswith(".delta"):
            index = event["output_index"]
            texts[index] = texts.get(index, "") + event["delta"]
        elif event["type"] == "response.output_item.done":
            items[event["output_index"]] = event["item"]
    for index, item in items.items():
        holder = (item.get("summary") or item.get("content") or [{}])[0]
        assert texts.get(index, "") == holder.get("text", item.get("arguments"))
    return [items[index] for index in sorted(items)]


def fold_messages(events: list[dict[str, Any]]) -> Any:
    """The content of messages."""
    content: list[dict[str, Any]] = []
    inputs = ""
    for event in events:
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
            inputs = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            name = delta["type"].removesuffix("_delta")
            if name == "input_json":
                inputs += delta["partial_json"]
            else:
                content[-1][name] += delta[name]
        elif event["type"] == "content_block_stop" and content[-1]["type"] == "tool_use":
            content[-1]["input"] = json.loads(inputs)
    return content


def fold_google(events: list[dict[str, Any]]) -> Any:
    """The parts of a content, with neighbouring texts of a kind joined."""
    parts: list[dict[str, Any]] = []
    for event in events:
        for part in event["candidates"][0]["content"]["parts"]:
            last = parts[-1] if parts else {}
            if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
                last["text"] += part["text"]
            else:
                parts.append(dict(part))
    return parts


FOLDS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "chat": fold_chat,
    "responses": fold_responses,
    "messages": fold_messages,
    "google": fold_google,
}


def said(wire: ProviderWire, answer: ModelAnswer, call: ModelCall) -> Any:
    """What the policy said in the JSON of an answer: the part that clients keep."""
    whole: Any = json.loads(json_bytes(wire.answer(answer, call)))
    match wire.name:
        case "chat":
            message = whole["choices"][0]["message"]
            return {**message, "content": message["content"] or ""}
        case "responses":
            return whole["output"]
        case "messages":
            return whole["content"]
        case _:
            return whole["candidates"][0]["content"]["parts"]


def history_of(wire: ProviderWire, kept: Any) -> tuple[str, bytes]:
    """The next request of a client that keeps an answer: its target and its body."""
    body: dict[str, Any]
    match wire.name:
        case "chat":
            target, body = "/v1/chat/completions", {"messages": [kept, {"role": "user"}]}
        case "responses":
            target, body = "/v1/responses", {"input": [*kept, {"role": "user"}]}
        case "messages":
            said = {"role": "assistant", "content": kept}
            target, body = "/v1/messages", {"messages": [said, {"role": "user", "content": ""}]}
        case _:
            said = {"role": "model", "parts": kept}
            target, body = "/v1beta/models/m:generateContent", {"contents": [said, {"parts": []}]}
    return target, json.dumps(body).encode()
