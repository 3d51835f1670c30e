"""Anthropic's own client takes every form of the wire messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall, Refusal
from rollart_flow.types import Message, Role, Tool
from tests.gateway.sdks import anthropic
from tests.gateway.wires.rig import STREAMED
from tests.gateway.wires.rig import anthropic_client as client
from tests.gateway.wires.scripted import (
    ANSWER_ID,
    CALLS,
    PICTURE,
    SIGNATURE,
    TEXT,
    ScriptedGateway,
    answer,
    refusal,
    shortened_answer,
)

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}},
    {"name": "list", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]


def parsed(**body: Any) -> ModelCall:
    """The call of a request, as the SDK sends it."""
    gateway = ScriptedGateway(answer())
    with client(gateway) as sdk:
        options: Any = {"model": "m", "max_tokens": 64, "messages": HELLO} | body
        sdk.messages.create(**options)
    return gateway.calls[0]


def test_an_answer_with_thinking_and_parallel_calls() -> None:
    gateway = ScriptedGateway(answer(thinking="hmm", calls=True))
    with client(gateway) as sdk:
        found = sdk.messages.create(model="m", max_tokens=64, messages=HELLO, tools=TOOLS)
    assert found.id == f"msg_{ANSWER_ID}"
    assert [block.to_dict() for block in found.content] == [
        {"type": "thinking", "thinking": "hmm", "signature": SIGNATURE},
        {"type": "text", "text": TEXT},
        {
            "type": "tool_use",
            "id": "toolu_call00000",
            "name": "read",
            "input": {"path": "ä.py", "lines": [1, 2.5, None]},
        },
        {"type": "tool_use", "id": "toolu_call00001", "name": "list", "input": {}},
    ]
    assert found.stop_reason == "tool_use"
    usage = found.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (40, 60, 20)
    assert gateway.calls[0].tools == (
        Tool("read", "Reads.", {"type": "object"}),
        Tool("list", "", {"type": "object"}),
    )
    assert gateway.calls[0].dropped == ("tools.cache_control",)


@pytest.mark.parametrize("given", STREAMED)
@pytest.mark.parametrize("beats", [0, 2])
def test_a_stream_adds_up_to_the_answer(given: ModelAnswer, beats: int) -> None:
    gateway = ScriptedGateway(given, given, beats=beats)
    options: Any = {"model": "m", "max_tokens": 64, "messages": HELLO}
    with client(gateway) as sdk:
        whole = sdk.messages.create(**options)
        with sdk.messages.stream(**options) as stream:
            streamed = stream.get_final_message()
    assert streamed.to_dict() == whole.to_dict()


def test_the_order_of_the_events_of_a_stream() -> None:
    gateway = ScriptedGateway(answer("short", "hmm"))
    with client(gateway) as sdk:
        kinds = [
            event.type
            for event in sdk.messages.create(model="m", max_tokens=64, messages=HELLO, stream=True)
        ]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = [*block[:2], *block[1:]]
    assert kinds == ["message_start", *thinking, *block, "message_delta", "message_stop"]
    assert b"event: ping\n" in gateway.sent[0]


def test_an_answer_that_ran_out_of_tokens() -> None:
    gateway = ScriptedGateway(shortened_answer())
    with client(gateway) as sdk:
        found = sdk.messages.create(model="m", max_tokens=64, messages=HELLO)
    assert found.stop_reason == "max_tokens"


def test_a_history_with_thinking_calls_and_results() -> None:
    history = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hmm", "signature": SIGNATURE},
                {"type": "tool_use", "id": "toolu_call00000", "name": "read"}
                | {"input": {"lines": [1, 2.5, None], "path": "ä.py"}},
                {"type": "tool_use", "id": "toolu_call00001", "name": "list", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_call00001", "content": "b.py"},
                {"type": "tool_result", "tool_use_id": "toolu_call00000", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "assistant", "content": "(no content)"},
        {"role": "system", "content": "be quick"},
    ]
    call = parsed(messages=history, system=[{"type": "text", "text": "one"}])
    assert call.messages == (
        Message(Role.SYSTEM, "one"),
        Message(Role.USER, "hello"),
        Message(Role.ASSISTANT, "", "hmm", CALLS),
        Message(Role.TOOL, "b.py", call_id="call00001", name="list"),
        Message(Role.TOOL, "", call_id="call00000", name="read"),
        Message(Role.USER, "go on"),
        Message(Role.ASSISTANT, ""),
        Message(Role.USER, "be quick"),
    )
    assert call.echoes == {2: (SIGNATURE,)}
    assert call.dropped == ("messages.content.is_error",)


def test_what_changes_with_every_call_is_left_out_of_the_system() -> None:
    texts = [
        "x-anthropic-billing-header: v=1; cch=0f3;",
        "Do <total_tokens>99 tokens left</total_tokens>it.",
    ]
    call = parsed(system=[{"type": "text", "text": text} for text in texts])
    assert call.messages[0] == Message(Role.SYSTEM, "Do it.")
    assert call.dropped == ("system.total_tokens", "system.x-anthropic-billing-header")


def test_images_come_in_base64_also_from_tools() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PICTURE},
    }
    content = [{"type": "tool_result", "tool_use_id": "a", "content": [image]}, image]
    call = parsed(messages=[{"role": "user", "content": content}])
    assert [message.images[0].size for message in call.messages] == [(3, 4), (3, 4)]


def test_settings_are_reported_and_what_has_no_effect_is_named() -> None:
    call = parsed(
        extra_body={"temperature": 0.2},
        stop_sequences=["END"],
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        metadata={"user_id": "me"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        tools=[*TOOLS[:1], {"type": "web_search_20250305", "name": "web_search"}],
        extra_headers={"x-claude-code-session-id": "s1"},
    )
    assert call.sampling == {
        "temperature": 0.2,
        "stop_sequences": ["END"],
        "thinking": {"type": "adaptive"},
        "effort": "high",
    }
    assert (call.max_tokens, call.lineage) == (64, "s1")
    assert call.dropped == (
        "metadata",
        "tool_choice.disable_parallel_tool_use",
        "tools.name",
        "tools.type",
    )


def test_tokens_are_counted() -> None:
    gateway = ScriptedGateway(123)
    with client(gateway) as sdk:
        prefilled = [*HELLO, {"role": "assistant", "content": "a"}]
        counted = sdk.messages.count_tokens(model="m", messages=prefilled, tools=TOOLS)
    assert counted.input_tokens == 123
    assert len(gateway.calls[0].messages) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool", "name": "read"}),
        ("tools", [{"type": "web_search_20250305", "name": "web_search"}]),
        ("tools", [{"type": "bash_20250124", "name": "bash"}]),
        ("output_config", {"format": {"type": "json_schema", "schema": {}}}),
        ("messages", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
        (
            "messages",
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
                    ],
                }
            ],
        ),
    ],
)
def test_what_would_change_the_distribution_is_refused(name: str, value: object) -> None:
    with pytest.raises(anthropic.BadRequestError, match=name) as caught:
        parsed(**{name: value})
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("kind", "error", "status", "word"),
    [
        (Refusal.KEY, "AuthenticationError", 401, "authentication_error"),
        (Refusal.SEALED, "ConflictError", 409, "invalid_request_error"),
        (Refusal.INVALID, "BadRequestError", 400, "invalid_request_error"),
        (Refusal.UNSUPPORTED, "BadRequestError", 400, "invalid_request_error"),
        (Refusal.TOO_LARGE, "RequestTooLargeError", 413, "request_too_large"),
        (Refusal.OVERFLOW, "BadRequestError", 400, "invalid_request_error"),
        (Refusal.BUSY, "RateLimitError", 429, "rate_limit_error"),
        (Refusal.ENGINE, "InternalServerError", 503, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_raises_the_error_of_the_sdk(
    kind: Refusal, error: str, status: int, word: str, stream: bool
) -> None:
    with (
        client(ScriptedGateway(refusal(kind))) as sdk,
        pytest.raises(getattr(anthropic, error)) as caught,
    ):
        sdk.messages.create(model="m", max_tokens=64, messages=HELLO, stream=stream)
    assert caught.value.status_code == status
    assert json.loads(caught.value.response.text)["error"]["type"] == word


def test_an_overflow_has_the_phrase_that_clients_look_for() -> None:
    with (
        client(ScriptedGateway(refusal(Refusal.OVERFLOW))) as sdk,
        pytest.raises(anthropic.BadRequestError, match="prompt is too long: 5000 tokens > 4096"),
    ):
        sdk.messages.create(model="m", max_tokens=64, messages=HELLO)


def test_a_refusal_within_a_stream_raises_too() -> None:
    gateway = ScriptedGateway(refusal(Refusal.ENGINE), beats=1)
    with (
        client(gateway) as sdk,
        pytest.raises(anthropic.APIStatusError, match="this is engine"),
        sdk.messages.create(model="m", max_tokens=64, messages=HELLO, stream=True) as stream,
    ):
        list(stream)


def test_models_are_listed() -> None:
    with client(ScriptedGateway()) as sdk:
        assert [model.id for model in sdk.models.list()] == ["policy"]
        assert sdk.models.retrieve("m").display_name == "m"
