"""OpenAI's own client takes every form of the wire chat."""

from __future__ import annotations

from typing import Any

import pytest

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.wires.chat import WIRE
from rollart_flow.types import Message, Role, Tool
from tests.gateway.sdks import openai
from tests.gateway.wires.rig import STREAMED
from tests.gateway.wires.rig import openai_client as client
from tests.gateway.wires.scripted import (
    ANSWER_ID,
    CALLS,
    PICTURE,
    TEXT,
    ScriptedGateway,
    answer,
    refusal,
    shortened_answer,
)

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}},
    },
    {"type": "function", "function": {"name": "list"}},
]


def parsed(**body: Any) -> ModelCall:
    """The call of a request with one message, as the SDK sends it."""
    gateway = ScriptedGateway(answer())
    with client(gateway) as sdk:
        sdk.chat.completions.create(**{"model": "m", "messages": HELLO} | body)
    return gateway.calls[0]


def test_an_answer_with_thinking_and_parallel_calls() -> None:
    gateway = ScriptedGateway(answer(thinking="hmm", calls=True))
    with client(gateway) as sdk:
        found = sdk.chat.completions.create(model="m", messages=HELLO, tools=TOOLS)
    message = found.choices[0].message
    assert found.id == f"chatcmpl-{ANSWER_ID}"
    assert (message.content, message.model_extra) == (TEXT, {"reasoning_content": "hmm"})
    assert [call.to_dict() for call in message.tool_calls or ()] == [
        {
            "id": "call_call00000",
            "type": "function",
            "function": {"name": "read", "arguments": '{"path":"ä.py","lines":[1,2.5,null]}'},
        },
        {
            "id": "call_call00001",
            "type": "function",
            "function": {"name": "list", "arguments": "{}"},
        },
    ]
    assert found.choices[0].finish_reason == "tool_calls"
    assert found.usage is not None
    assert found.usage.prompt_tokens_details is not None
    assert found.usage.completion_tokens_details is not None
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (100, 120)
    assert found.usage.prompt_tokens_details.cached_tokens == 60
    assert found.usage.completion_tokens_details.reasoning_tokens == 7
    assert gateway.calls[0].tools == (
        Tool("read", "Reads.", {"type": "object"}),
        Tool("list", "", {"type": "object", "properties": {}}),
    )


@pytest.mark.parametrize("given", STREAMED)
@pytest.mark.parametrize("beats", [0, 2])
def test_a_stream_adds_up_to_the_answer(given: ModelAnswer, beats: int) -> None:
    gateway = ScriptedGateway(given, given, beats=beats)
    with client(gateway) as sdk:
        options: Any = {"model": "m", "messages": HELLO}
        whole = sdk.chat.completions.create(**options)
        with sdk.chat.completions.stream(
            **options, stream_options={"include_usage": True}
        ) as stream:
            chunks = [event for event in stream if event.type == "chunk"]
            streamed = stream.get_final_completion()
    said, wanted = streamed.choices[0].message, whole.choices[0].message
    assert (said.content or "") == (wanted.content or "")
    assert said.model_extra == wanted.model_extra or not given.action.thinking
    assert [call.id for call in said.tool_calls or ()] == [
        call.id for call in wanted.tool_calls or ()
    ]
    assert [call.function.arguments for call in said.tool_calls or ()] == [
        call.function.arguments for call in wanted.tool_calls or () if call.type == "function"
    ]
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason
    assert streamed.usage == whole.usage
    assert len({chunk.chunk.id for chunk in chunks}) == 1
    assert gateway.sent[1].endswith(b"data: [DONE]\n\n")


def test_usage_is_streamed_only_where_it_is_asked_for() -> None:
    gateway = ScriptedGateway(answer())
    with client(gateway) as sdk:
        chunks = [*sdk.chat.completions.create(model="m", messages=HELLO, stream=True)]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_an_answer_that_ran_out_of_tokens() -> None:
    gateway = ScriptedGateway(shortened_answer())
    with client(gateway) as sdk:
        found = sdk.chat.completions.create(model="m", messages=HELLO)
    assert found.choices[0].finish_reason == "length"


def test_a_history_with_calls_and_results() -> None:
    history = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hmm",
            "tool_calls": [
                {
                    "id": "call_call00000",
                    "type": "function",
                    "function": {
                        "name": "read",
                        "arguments": '{"lines": [1, 2.5, null], "path":"ä.py"}',
                    },
                },
                {
                    "id": "call_call00001",
                    "type": "function",
                    "function": {"name": "list", "arguments": ""},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "call_call00001", "content": "b.py"},
        {
            "role": "tool",
            "tool_call_id": "call_call00000",
            "content": [{"type": "text", "text": "x"}],
        },
        {"role": "system", "content": "be quick"},
    ]
    call = parsed(messages=history)
    assert call.messages == (
        Message(Role.SYSTEM, "one\n\ntwo"),
        Message(Role.USER, "hello"),
        Message(Role.ASSISTANT, "", "hmm", CALLS),
        Message(Role.TOOL, "b.py", call_id="call00001", name="list"),
        Message(Role.TOOL, "x", call_id="call00000", name="read"),
        Message(Role.USER, "be quick"),
    )
    assert call.reply == {"thinking": "reasoning"}


def test_the_answer_has_its_thinking_where_the_client_has_it() -> None:
    call = parsed(messages=[{"role": "assistant", "content": "a", "reasoning": "b"}])
    assert WIRE.answer(answer(thinking="hmm"), call)["choices"][0]["message"]["reasoning"] == "hmm"


def test_images_are_read_from_data_urls() -> None:
    url = f"data:image/png;base64,{PICTURE}"
    content = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    call = parsed(messages=[{"role": "user", "content": content}])
    assert call.messages[0].images[0].size == (3, 4)
    assert call.messages[0].text == "see "
    assert call.dropped == ("messages.content.image_url.detail",)


def test_settings_are_reported_and_what_has_no_effect_is_named() -> None:
    call = parsed(
        temperature=0.2,
        stop="END",
        seed=3,
        max_completion_tokens=64,
        reasoning_effort="low",
        user="me",
        parallel_tool_calls=False,
        tools=[*TOOLS, {"type": "web_search"}],
        extra_body={"cache_prompt": True},
    )
    assert call.sampling == {
        "temperature": 0.2,
        "stop": ["END"],
        "seed": 3,
        "reasoning_effort": "low",
    }
    assert (call.max_tokens, call.model) == (64, "m")
    assert call.dropped == ("cache_prompt", "parallel_tool_calls", "tools.type", "user")
    assert len(call.tools) == 2


def test_a_client_that_wants_no_calls_gets_no_tools() -> None:
    assert parsed(tools=TOOLS, tool_choice="none").tools == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("logit_bias", {"50256": -100}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "read"}}),
        ("response_format", {"type": "json_object"}),
        ("functions", [{"name": "read", "parameters": {}}]),
        ("tools", [{"type": "web_search"}]),
        ("tools", [{"type": "custom", "custom": {"name": "x"}}]),
        (
            "messages",
            [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}],
                }
            ],
        ),
    ],
)
def test_what_would_change_the_distribution_is_refused(name: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError, match=name) as caught:
        parsed(**{name: value})
    assert caught.value.code == "unsupported_value"
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        (Refusal.KEY, "AuthenticationError", 401),
        (Refusal.SEALED, "ConflictError", 409),
        (Refusal.INVALID, "BadRequestError", 400),
        (Refusal.UNSUPPORTED, "BadRequestError", 400),
        (Refusal.TOO_LARGE, "APIStatusError", 413),
        (Refusal.OVERFLOW, "BadRequestError", 400),
        (Refusal.BUSY, "RateLimitError", 429),
        (Refusal.ENGINE, "InternalServerError", 503),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_raises_the_error_of_the_sdk(
    kind: Refusal, error: str, status: int, stream: bool
) -> None:
    with (
        client(ScriptedGateway(refusal(kind))) as sdk,
        pytest.raises(getattr(openai, error)) as caught,
    ):
        sdk.chat.completions.create(model="m", messages=HELLO, stream=stream)
    assert caught.value.status_code == status


def test_a_permanent_refusal_is_not_sent_again() -> None:
    gateway = ScriptedGateway(refusal(Refusal.SEALED))
    with client(gateway) as sdk, pytest.raises(openai.ConflictError):
        sdk.with_options(max_retries=3).chat.completions.create(model="m", messages=HELLO)
    assert len(gateway.calls) == 1


def test_a_client_that_sends_again_says_so() -> None:
    gateway = ScriptedGateway(refusal(Refusal.ENGINE), answer())
    with client(gateway) as sdk:
        patient = sdk.with_options(max_retries=1, timeout=5)
        patient._sleep_for_retry = lambda **_: None  # type: ignore[method-assign]
        patient.chat.completions.create(model="m", messages=HELLO)
    first, second = gateway.calls
    assert (first.retry, second.retry) == (False, True)
    assert first.digest == second.digest
    assert first.client.startswith("OpenAI/Python")


def test_an_overflow_has_the_phrases_that_clients_look_for() -> None:
    with (
        client(ScriptedGateway(refusal(Refusal.OVERFLOW))) as sdk,
        pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as e,
    ):
        sdk.chat.completions.create(model="m", messages=HELLO)
    assert e.value.code == "context_length_exceeded"


def test_a_refusal_within_a_stream_raises_too() -> None:
    gateway = ScriptedGateway(refusal(Refusal.ENGINE), beats=2)
    with (
        client(gateway) as sdk,
        pytest.raises(openai.APIError, match="this is engine"),
        sdk.chat.completions.create(model="m", messages=HELLO, stream=True) as stream,
    ):
        list(stream)


def test_a_wrong_key() -> None:
    with (
        client(ScriptedGateway(), key="other") as sdk,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        sdk.chat.completions.create(model="m", messages=HELLO)
    assert "other" not in str(caught.value)


def test_models_are_listed() -> None:
    with client(ScriptedGateway()) as sdk:
        assert [model.id for model in sdk.models.list()] == ["policy"]
        assert sdk.models.retrieve("a/b").id == "a/b"


def test_a_call_that_is_not_well_formed_comes_back_as_one() -> None:
    history = [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{no"}}
            ],
        }
    ]
    found = parsed(messages=history).messages[0].tool_calls[0]
    assert (found.text, found.arguments) == ("{no", {})
    assert found.error is not None


def test_chat_has_no_route_that_counts() -> None:
    with pytest.raises(CallRefusedError):
        WIRE.count(3)
