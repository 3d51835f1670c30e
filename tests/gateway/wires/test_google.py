"""Google's own client takes every form of the wire google."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx2
import pytest

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.wires.google import WIRE
from rollart_flow.types import Message, Role, Tool, ToolCall
from tests.extras import needs
from tests.gateway.sdks import errors, types
from tests.gateway.wires.folding import fold_google
from tests.gateway.wires.rig import STREAMED
from tests.gateway.wires.rig import google_client as client
from tests.gateway.wires.scripted import (
    ANSWER_ID,
    CALLS,
    KEY,
    PICTURE,
    SIGNATURE,
    TEXT,
    ScriptedGateway,
    answer,
    refusal,
    shortened_answer,
)

needs("google.genai", "dev")

PATH = "/v1beta/models/m:generateContent"
STREAM = "/v1beta/models/m:streamGenerateContent"
DECLARED: Any = [
    {
        "name": "read",
        "description": "Reads.",
        "parameters": {
            "type": "OBJECT",
            "properties": {"type": {"type": "STRING", "enum": ["STRING"]}},
        },
    },
    {"name": "list", "parametersJsonSchema": {"type": "object", "properties": {}}},
]
JSON_SCHEMA = {
    "type": "object",
    "properties": {"type": {"type": "string", "enum": ["STRING"]}},
}


def parsed(contents: Any = "hello", **config: Any) -> ModelCall:
    """The call of a request, as the SDK sends it."""
    gateway = ScriptedGateway(answer())
    settings: Any = config or None
    with client(gateway) as sdk:
        sdk.models.generate_content(model="m", contents=contents, config=settings)
    return gateway.calls[0]


def posted(path: str, body: object) -> tuple[ScriptedGateway, httpx2.Response]:
    """The reply to a body as it is."""
    gateway = ScriptedGateway(answer(thinking="hmm", calls=True))
    with gateway.client() as http:
        reply = http.post(f"http://gateway{path}", json=body, headers={"x-goog-api-key": KEY})
    return gateway, reply


def test_an_answer_with_thinking_and_parallel_calls() -> None:
    gateway = ScriptedGateway(answer(thinking="hmm", calls=True))
    with client(gateway) as sdk:
        found = sdk.models.generate_content(
            model="m",
            contents="hello",
            config={
                "tools": [{"function_declarations": DECLARED}],
                "automatic_function_calling": {"disable": True},
            },
        )
    candidates = found.candidates or []
    content = candidates[0].content
    assert content is not None
    thought, text, first, second = content.parts or []
    assert (thought.text, thought.thought) == ("hmm", True)
    assert (text.text, text.thought_signature) == (TEXT, SIGNATURE.encode())
    assert first.function_call == types.FunctionCall(
        id="call00000", name="read", args={"path": "ä.py", "lines": [1, 2.5, None]}
    )
    assert second.function_call == types.FunctionCall(id="call00001", name="list", args={})
    assert candidates[0].finish_reason == types.FinishReason.STOP
    usage = found.usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (100, 60)
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (13, 7)
    assert found.response_id == ANSWER_ID
    assert gateway.calls[0].tools == (
        Tool("read", "Reads.", JSON_SCHEMA),
        Tool("list", "", {"type": "object", "properties": {}}),
    )


@pytest.mark.parametrize("given", STREAMED)
@pytest.mark.parametrize("beats", [0, 2])
def test_a_stream_adds_up_to_the_answer(given: ModelAnswer, beats: int) -> None:
    gateway = ScriptedGateway(given, given, beats=beats)
    with client(gateway) as sdk:
        whole = sdk.models.generate_content(model="m", contents="a")
        chunks = [*sdk.models.generate_content_stream(model="m", contents="a")]
    folded, wanted = (
        [each.model_dump(exclude_none=True) for each in of] for of in (chunks, [whole])
    )
    assert fold_google(folded) == wanted[0]["candidates"][0]["content"]["parts"]
    reasons = [(chunk.candidates or [])[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [types.FinishReason.STOP]
    assert chunks[-1].usage_metadata == whole.usage_metadata
    assert any(part.function_call or (part.text and not part.thought) for part in whole.parts or [])


@pytest.mark.parametrize("beats", [0, 2])
def test_a_stream_is_an_array_unless_events_are_asked_for(beats: int) -> None:
    given = answer("t", "h", calls=True)
    gateway = ScriptedGateway(given, beats=beats)
    with gateway.client() as http:
        reply = http.post(f"http://gateway{STREAM}?key={KEY}", json={"contents": [{"parts": []}]})
    chunks = reply.json()
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-accel-buffering"] == "no"
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    whole = WIRE.answer(given, gateway.calls[0])["candidates"][0]["content"]["parts"]
    assert parts == whole
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


def test_an_array_that_has_begun_ends_with_the_refusal() -> None:
    gateway = ScriptedGateway(refusal(Refusal.ENGINE), beats=2)
    with gateway.client() as http:
        reply = http.post(f"http://gateway{STREAM}?key={KEY}", json={"contents": [{"parts": []}]})
    assert reply.json()[0]["error"]["status"] == "UNAVAILABLE"


def test_an_answer_that_ran_out_of_tokens() -> None:
    with client(ScriptedGateway(shortened_answer())) as sdk:
        found = sdk.models.generate_content(model="m", contents="a")
    assert (found.candidates or [])[0].finish_reason == types.FinishReason.MAX_TOKENS


def test_a_history_that_the_sdk_keeps_of_a_stream() -> None:
    gateway = ScriptedGateway(answer(thinking="h" * 50), answer(thinking="h"))
    with client(gateway) as sdk:
        chat = sdk.chats.create(model="m")
        list(chat.send_message_stream("hello"))
        chat.send_message("go on")
    call = gateway.calls[1]
    assert call.messages == (
        Message(Role.USER, "hello"),
        Message(Role.ASSISTANT, TEXT, "h" * 50),
        Message(Role.USER, "go on"),
    )
    assert call.echoes == {1: (SIGNATURE,)}


def test_a_history_with_calls_and_results() -> None:
    signature = base64.b64encode(ANSWER_ID.encode()).decode()
    arguments = {"lines": [1, 2.5, None], "path": "ä.py"}
    contents = [
        {"role": "user", "parts": [{"text": "hello"}]},
        {
            "role": "model",
            "parts": [
                {
                    "function_call": {"id": "call00000", "name": "read", "args": arguments},
                    "thought_signature": signature,
                },
                {"functionCall": {"id": "call00001", "name": "list"}},
            ],
        },
        {
            "role": "function",
            "parts": [
                {
                    "functionResponse": {
                        "id": "call00001",
                        "name": "list",
                        "response": {"output": "b.py"},
                    }
                },
                {"functionResponse": {"name": "read", "response": {"lines": 3}}},
                {"text": "go on"},
            ],
        },
    ]
    instruction = {"parts": [{"text": "one"}, {"text": " two"}]}
    gateway, _ = posted(PATH, {"contents": contents, "system_instruction": instruction})
    call = gateway.calls[0]
    assert call.messages == (
        Message(Role.SYSTEM, "one two"),
        Message(Role.USER, "hello"),
        Message(Role.ASSISTANT, "", None, CALLS),
        Message(Role.TOOL, "b.py", call_id="call00001", name="list"),
        Message(Role.TOOL, '{"lines":3}', call_id="call00000", name="read"),
        Message(Role.USER, "go on"),
    )
    assert call.echoes == {2: (ANSWER_ID,)}
    assert call.dropped == ()


def test_calls_without_ids_are_matched_by_name_and_order() -> None:
    named = [("read", {"n": 1}), ("list", {}), ("read", {"n": 2})]
    calls = [{"functionCall": {"name": name, "args": args}} for name, args in named]
    results = [
        {"functionResponse": {"name": name, "response": {"output": text}}}
        for name, text in (("read", "first"), ("read", "second"), ("list", "third"))
    ]
    gateway, _ = posted(PATH, {"contents": [{"role": "model", "parts": [*calls, *results]}]})
    assert gateway.calls[0].messages == (
        Message(
            Role.ASSISTANT,
            "",
            tool_calls=(
                ToolCall("g00000000", "read", {"n": 1}),
                ToolCall("g00000001", "list", {}),
                ToolCall("g00000002", "read", {"n": 2}),
            ),
        ),
        Message(Role.TOOL, "first", call_id="g00000000", name="read"),
        Message(Role.TOOL, "second", call_id="g00000002", name="read"),
        Message(Role.TOOL, "third", call_id="g00000001", name="list"),
    )


def test_images_are_read_inline() -> None:
    call = parsed([types.Part.from_bytes(data=base64.b64decode(PICTURE), mime_type="image/png")])
    assert call.messages[0].images[0].size == (3, 4)


def test_settings_are_reported_and_what_has_no_effect_is_named() -> None:
    call = parsed(
        temperature=0.2,
        top_k=5,
        stop_sequences=["END"],
        max_output_tokens=64,
        candidate_count=1,
        thinking_config={"include_thoughts": True},
        safety_settings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_ONLY_HIGH"}],
        tools=[{"function_declarations": DECLARED}, {"google_search": {}}],
        automatic_function_calling={"disable": True},
    )
    assert call.sampling == {
        "temperature": 0.2,
        "topK": 5,
        "stopSequences": ["END"],
        "thinkingConfig": {"includeThoughts": True},
    }
    assert (call.max_tokens, call.model, call.stream) == (64, "m", False)
    assert call.dropped == ("safetySettings", "tools.googleSearch")


def test_a_model_in_the_path_may_have_a_slash() -> None:
    gateway, _ = posted("/v1/models/a%2Fb:generateContent", {"contents": [{"parts": []}]})
    assert gateway.calls[0].model == "a/b"


def test_tokens_are_counted() -> None:
    gateway = ScriptedGateway(123, 124)
    with client(gateway) as sdk:
        assert sdk.models.count_tokens(model="m", contents="hello").total_tokens == 123
    request = {"generateContentRequest": {"model": "m", "contents": [{"parts": [{"text": "a"}]}]}}
    with gateway.client() as http:
        reply = http.post(f"http://gateway/v1beta/models/m:countTokens?key={KEY}", json=request)
    assert reply.json() == {"totalTokens": 124}
    assert gateway.calls[1].messages == (Message(Role.USER, "a"),)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("candidateCount", {"candidate_count": 2}),
        ("responseMimeType", {"response_mime_type": "application/json"}),
        ("responseModalities", {"response_modalities": ["IMAGE"]}),
        ("mode", {"tool_config": {"function_calling_config": {"mode": "ANY"}}}),
        ("tools", {"tools": [{"google_search": {}}]}),
        ("cachedContent", {"cached_content": "cachedContents/1"}),
    ],
)
def test_what_would_change_the_distribution_is_refused(name: str, config: Any) -> None:
    with pytest.raises(errors.ClientError, match=name) as caught:
        parsed(**config)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


def test_remote_files_are_refused() -> None:
    part = types.Part.from_uri(file_uri="https://a/b.png", mime_type="image/png")
    with pytest.raises(errors.ClientError, match="fileData"):
        parsed([part])


@pytest.mark.parametrize(
    ("kind", "error", "status", "word"),
    [
        (Refusal.KEY, "ClientError", 401, "UNAUTHENTICATED"),
        (Refusal.SEALED, "ClientError", 409, "ABORTED"),
        (Refusal.INVALID, "ClientError", 400, "INVALID_ARGUMENT"),
        (Refusal.TOO_LARGE, "ClientError", 413, "INVALID_ARGUMENT"),
        (Refusal.OVERFLOW, "ClientError", 400, "INVALID_ARGUMENT"),
        (Refusal.BUSY, "ClientError", 429, "RESOURCE_EXHAUSTED"),
        (Refusal.ENGINE, "ServerError", 503, "UNAVAILABLE"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_raises_the_error_of_the_sdk(
    kind: Refusal, error: str, status: int, word: str, stream: bool
) -> None:
    with client(ScriptedGateway(refusal(kind))) as sdk:
        models = sdk.models
        ask: Any = models.generate_content_stream if stream else models.generate_content
        with pytest.raises(getattr(errors, error)) as caught:
            list(ask(model="m", contents="a"))
    assert (caught.value.code, caught.value.status) == (status, word)


def test_an_overflow_has_the_phrase_that_clients_look_for() -> None:
    with (
        client(ScriptedGateway(refusal(Refusal.OVERFLOW))) as sdk,
        pytest.raises(errors.ClientError, match=r"input token count \(5000\) exceeds the maximum"),
    ):
        sdk.models.generate_content(model="m", contents="a")


def test_a_refusal_within_a_stream_raises_too() -> None:
    gateway = ScriptedGateway(refusal(Refusal.BUSY), beats=1)
    with client(gateway) as sdk, pytest.raises(errors.ClientError) as caught:
        list(sdk.models.generate_content_stream(model="m", contents="a"))
    assert caught.value.code == 429
    assert json.loads(gateway.sent[0].split(b"data: ")[1])["error"]["details"][0]["retryDelay"]


def test_models_are_listed() -> None:
    with client(ScriptedGateway()) as sdk:
        assert [model.name for model in sdk.models.list()] == ["models/policy"]
        assert sdk.models.get(model="m").name == "models/m"
