"""Whatever the bytes of a request are, a wire gives a call or one line that says what is wrong."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.gateway.core.calls import CallRefusedError, ModelCall, Refusal
from rollart_flow.gateway.wires.registry import WIRES
from tests.gateway.wires.scripted import PICTURE

URL = f"data:image/png;base64,{PICTURE}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "STRING"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "s"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "t"},
                        {"type": "image_url", "image_url": {"url": URL}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "r",
                    "tool_calls": [
                        {
                            "id": "call_a",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a": [1]}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_a", "content": "x"},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "auto",
            "temperature": 1,
            "stop": ["a"],
            "max_tokens": 5,
            "n": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "response_format": {"type": "text"},
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "model": "m",
            "instructions": "i",
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "t"}],
                },
                {"role": "user", "content": [{"type": "input_image", "image_url": URL}]},
                {
                    "type": "reasoning",
                    "id": "rs_a",
                    "summary": [{"type": "summary_text", "text": "r"}],
                    "encrypted_content": "e",
                },
                {"type": "message", "role": "assistant", "content": "a"},
                {
                    "type": "function_call",
                    "call_id": "call_a",
                    "namespace": "n",
                    "name": "f",
                    "arguments": "{}",
                },
                {"type": "custom_tool_call", "call_id": "call_b", "name": "c", "input": "x"},
                {"type": "local_shell_call", "call_id": "call_c", "action": {"command": ["ls"]}},
                {"type": "function_call_output", "call_id": "call_a", "output": "x"},
                {"type": "additional_tools", "tools": [{"type": "custom", "name": "c"}]},
            ],
            "tools": [
                {"type": "function", **FUNCTION},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
                {"type": "local_shell"},
            ],
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "text"}},
            "max_output_tokens": 5,
            "stream": True,
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "model": "m",
            "max_tokens": 5,
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "u"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "r", "signature": "e"},
                        {"type": "text", "text": "t"},
                        {"type": "tool_use", "id": "toolu_a", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_a",
                            "content": [{"type": "text", "text": "x"}],
                        },
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": PICTURE,
                            },
                        },
                    ],
                },
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 5},
            "output_config": {"effort": "low"},
            "stop_sequences": ["a"],
            "stream": True,
        },
    ),
    "google": (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {
            "systemInstruction": {"parts": [{"text": "s"}]},
            "contents": [
                {"role": "user", "parts": [{"text": "u"}]},
                {"parts": [{"inline_data": {"mime_type": "image/png", "data": PICTURE}}]},
                {
                    "role": "model",
                    "parts": [
                        {"text": "r", "thought": True},
                        {"text": "t", "thoughtSignature": "ZQ=="},
                        {"functionCall": {"name": "f", "args": {"a": 1}}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"name": "f", "response": {"output": "x"}}},
                    ],
                },
            ],
            "tools": [{"functionDeclarations": [FUNCTION]}],
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            "generationConfig": {
                "temperature": 1,
                "maxOutputTokens": 5,
                "stopSequences": ["a"],
                "thinkingConfig": {"includeThoughts": True},
            },
        },
    ),
}
NAMES = tuple(REQUESTS)
WRONG: tuple[Any, ...] = (None, 3, -1.5, True, "\u2028", [], [[]], {}, {"type": 7}, [None])
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "name", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within a value."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [place, *(found for key, each in inner for found in places(each, (*place, key)))]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A value with another one at a place."""
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], new)
    return copy


def parsed(name: str, body: bytes) -> ModelCall | CallRefusedError:
    """The call that a body is, or its refusal; another error fails the test."""
    try:
        return WIRES.load(name).parse(REQUESTS[name][0], {}, body)
    except CallRefusedError as error:
        return error


def outcome(name: str, body: bytes) -> Refusal | None:
    """How a wire takes a body: the kind of its refusal, or None for a call that can be stored."""
    found = parsed(name, body)
    if isinstance(found, CallRefusedError):
        assert "\n" not in found.message
        assert 0 < len(found.message) <= 500
        json.loads(WIRES.load(name).refused(found).body)
        return found.refusal
    forms = [message.as_json() for message in found.messages]
    json.dumps(forms, ensure_ascii=False, allow_nan=False).encode()
    json.dumps([tool.as_json() for tool in found.tools], allow_nan=False)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_the_requests_that_are_changed_are_good(name: str) -> None:
    assert outcome(name, json.dumps(REQUESTS[name][1]).encode()) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_type_in_every_field_is_one_line(name: str) -> None:
    body = REQUESTS[name][1]
    for place in places(body):
        for wrong in WRONG:
            found = outcome(name, json.dumps(changed(body, place, wrong)).encode())
            assert found in (None, Refusal.INVALID, Refusal.UNSUPPORTED)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_random_values_at_random_places(name: str, data: st.DataObject) -> None:
    body = REQUESTS[name][1]
    for _ in range(data.draw(st.integers(1, 3))):
        body = changed(body, data.draw(st.sampled_from(places(body))), data.draw(values))
    found = outcome(name, json.dumps(body).encode())
    assert found in (None, Refusal.INVALID, Refusal.UNSUPPORTED)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_torn_and_changed_bytes(name: str, data: st.DataObject) -> None:
    body = json.dumps(REQUESTS[name][1], ensure_ascii=False).encode()
    at = data.draw(st.integers(0, len(body)))
    torn = body[:at] + data.draw(st.binary(max_size=3)) + body[at + data.draw(st.integers(0, 9)) :]
    assert outcome(name, torn) in (None, Refusal.INVALID, Refusal.UNSUPPORTED)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"model": "\\ud83d"}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}",
        b'{"messages": [], "contents": [], "input": []}',
    ],
)
def test_what_is_no_request_is_invalid(name: str, body: bytes) -> None:
    assert outcome(name, body) is Refusal.INVALID


@pytest.mark.parametrize("text", ["1e999", '{"a": 1e999}', "[1]", '{"a": "\\ud800"}', '{"a": NaN}'])
def test_arguments_that_are_no_json_object_are_those_of_a_malformed_call(text: str) -> None:
    function = {"name": "f", "arguments": text}
    call = {"id": "a", "type": "function", "function": function}
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}]}
    found = parsed("chat", json.dumps(body).encode())
    assert isinstance(found, ModelCall)
    assert found.messages[0].tool_calls[0].text == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("depth", [150, 300, 450, 700])
def test_deep_schemas_are_read_or_refused(name: str, depth: int) -> None:
    body = REQUESTS[name][1]
    deep = "[" * depth + "]" * depth
    text = json.dumps(body).replace('"STRING"', deep)
    assert text.count(deep) >= 1
    outcome(name, text.encode())


@pytest.mark.parametrize("name", NAMES)
def test_an_error_names_the_place(name: str) -> None:
    body = REQUESTS[name][1]
    key = next(key for key in ("messages", "input", "contents") if key in body)
    with pytest.raises(CallRefusedError, match=rf"{key}\[1\] should be an object, got 7"):
        WIRES.load(name).parse(
            REQUESTS[name][0], {}, json.dumps(changed(body, (key, 1), 7)).encode()
        )
