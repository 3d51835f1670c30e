"""OpenAI's own client takes every form of the wire responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollart_flow.gateway.core.calls import AnswerEnd, ModelAnswer, ModelCall, Refusal
from rollart_flow.types import Action, Message, Role, ToolCall
from tests.gateway.sdks import openai
from tests.gateway.wires.folding import data_of
from tests.gateway.wires.rig import STREAMED
from tests.gateway.wires.rig import openai_client as client
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

TOOLS: list[Any] = [
    {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}},
    {"type": "local_shell"},
    {
        "type": "namespace",
        "name": "files",
        "description": "Files.",
        "tools": [{"type": "function", "name": "list", "description": "Lists."}],
    },
    {"type": "web_search"},
]


def parsed(**body: Any) -> ModelCall:
    """The call of a request, as the SDK sends it."""
    gateway = ScriptedGateway(answer())
    with client(gateway) as sdk:
        sdk.responses.create(**{"model": "m", "input": "hello"} | body)
    return gateway.calls[0]


def called(name: str, **arguments: object) -> ModelAnswer:
    """An answer with one call."""
    action = Action("", None, (ToolCall("call00000", name, arguments),))
    return replace(answer(), action=action, end=AnswerEnd.TOOL_CALLS)


def without_parsed(value: Any) -> Any:
    """A value without what the SDK adds to it."""
    if isinstance(value, list):
        return [without_parsed(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if not key.startswith("parsed")}
    return {key: without_parsed(each) for key, each in kept.items()}


def test_an_answer_with_thinking_and_parallel_calls() -> None:
    with client(ScriptedGateway(answer(thinking="hmm", calls=True))) as sdk:
        found = sdk.responses.create(model="m", input="hello")
    thinking, message, first, second = (item.to_dict() for item in found.output)
    assert thinking == {
        "type": "reasoning",
        "id": f"rs_{ANSWER_ID}",
        "summary": [{"type": "summary_text", "text": "hmm"}],
        "encrypted_content": SIGNATURE,
    }
    assert (message["id"], found.output_text) == (f"msg_{ANSWER_ID}", TEXT)
    assert first == {
        "type": "function_call",
        "id": f"fc_{ANSWER_ID}_2",
        "call_id": "call_call00000",
        "name": "read",
        "arguments": '{"path":"ä.py","lines":[1,2.5,null]}',
        "status": "completed",
    }
    assert second["arguments"] == "{}"
    assert found.status == "completed"
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.total_tokens) == (100, 120)
    assert found.usage.input_tokens_details.cached_tokens == 60
    assert found.usage.output_tokens_details.reasoning_tokens == 7


@pytest.mark.parametrize(
    "given",
    [
        *STREAMED,
        pytest.param(called("patch", input="*** Begin"), id="custom"),
        pytest.param(called("local_shell", command=["ls"]), id="shell"),
        pytest.param(called("files__list"), id="namespace"),
    ],
)
@pytest.mark.parametrize("beats", [0, 3])
def test_a_stream_adds_up_to_the_answer(given: ModelAnswer, beats: int) -> None:
    gateway = ScriptedGateway(given, given, beats=beats)
    # The SDK parses calls of tools that it knows of.
    raw: Any = {"model": "m", "input": "hello", "extra_body": {"tools": TOOLS}}
    with client(gateway) as sdk:
        whole = sdk.responses.create(**raw)
        with sdk.responses.stream(**raw) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
    assert [without_parsed(item.to_dict()) for item in streamed.output] == [
        item.to_dict() for item in whole.output
    ]
    assert streamed.usage == whole.usage
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    sent = data_of(gateway.sent[1:])
    assert [event["sequence_number"] for event in sent] == [*range(len(sent))]
    assert len({event["response"]["id"] for event in sent if "response" in event}) == 1
    for event in sent:
        if event["type"] == "response.output_item.done":
            assert event["item"] == whole.output[event["output_index"]].to_dict()


def test_tools_of_each_kind_become_functions_and_their_calls_items_again() -> None:
    gateway = ScriptedGateway(
        called("patch", input="*** Begin"),
        called("local_shell", command=["ls", "-l"], working_directory="/tmp"),
        called("files__list", path="."),
        called("patch", text="no input"),
        called("local_shell", command="ls"),
    )
    with client(gateway) as sdk:
        items = [
            sdk.responses.create(model="m", input="a", tools=TOOLS).output[0].to_dict()
            for _ in range(5)
        ]
    assert [tool.name for tool in gateway.calls[0].tools] == [
        "read",
        "patch",
        "local_shell",
        "files__list",
    ]
    assert gateway.calls[0].dropped == ("tools.format", "tools.strict", "tools.type")
    custom, shell, spaced, *unfit = items
    assert (custom["type"], custom["name"], custom["input"]) == (
        "custom_tool_call",
        "patch",
        "*** Begin",
    )
    assert (shell["type"], shell["action"]) == (
        "local_shell_call",
        {"type": "exec", "command": ["ls", "-l"], "working_directory": "/tmp"},
    )
    assert (spaced["namespace"], spaced["name"]) == ("files", "list")
    assert [item["type"] for item in unfit] == ["function_call", "function_call"]


def test_a_history_of_items() -> None:
    history = [
        {"type": "message", "role": "developer", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {
            "type": "reasoning",
            "id": f"rs_{ANSWER_ID}",
            "summary": [{"type": "summary_text", "text": "hmm"}],
            "encrypted_content": SIGNATURE,
        },
        {
            "type": "function_call",
            "id": f"fc_{ANSWER_ID}_1",
            "call_id": "call_call00000",
            "name": "read",
            "arguments": '{"lines":[1, 2.5, null], "path": "ä.py"}',
        },
        {
            "type": "function_call",
            "call_id": "call_call00001",
            "name": "list",
            "arguments": "",
        },
        {"type": "function_call_output", "call_id": "call_call00001", "output": "b.py"},
        {
            "type": "function_call_output",
            "call_id": "call_call00000",
            "output": [{"type": "input_text", "text": "x"}],
        },
        {
            "type": "message",
            "id": "msg_other",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "one", "annotations": []}],
        },
        {"role": "assistant", "content": "two"},
        {
            "type": "custom_tool_call",
            "call_id": "call_c",
            "name": "patch",
            "input": "*** Begin",
        },
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "call_d",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None},
        },
        {
            "type": "function_call",
            "call_id": "e",
            "namespace": "files",
            "name": "list",
            "arguments": "{}",
        },
        {"type": "custom_tool_call_output", "call_id": "call_c", "output": "ok"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ]
    call = parsed(input=history, instructions="one")
    assert call.messages == (
        Message(Role.SYSTEM, "one\n\ntwo"),
        Message(Role.USER, "hello"),
        Message(Role.ASSISTANT, "", "hmm", CALLS),
        Message(Role.TOOL, "b.py", call_id="call00001", name="list"),
        Message(Role.TOOL, "x", call_id="call00000", name="read"),
        Message(Role.ASSISTANT, "one"),
        Message(
            Role.ASSISTANT,
            "two",
            tool_calls=(
                ToolCall("c", "patch", {"input": "*** Begin"}),
                ToolCall("d", "local_shell", {"command": ["ls"], "env": {}}),
                ToolCall("e", "files__list", {}),
            ),
        ),
        Message(Role.TOOL, "ok", call_id="c", name="patch"),
    )
    assert call.echoes == {2: (ANSWER_ID, SIGNATURE), 5: ("other",), 6: ("1",)}
    assert "input.type" in call.dropped


def test_tools_may_come_as_an_item() -> None:
    item = {"type": "additional_tools", "tools": TOOLS[:1]}
    call = parsed(input=[item, {"role": "user", "content": "a"}], tools=TOOLS[-1:])
    assert [tool.name for tool in call.tools] == ["read"]


def test_images_are_read_from_data_urls() -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}
    history: list[Any] = [
        {"role": "user", "content": [image]},
        {"type": "function_call_output", "call_id": "x", "output": [image]},
    ]
    assert [m.images[0].size for m in parsed(input=history).messages] == [(3, 4), (3, 4)]


def test_settings_are_reported_and_what_has_no_effect_is_named() -> None:
    call = parsed(
        temperature=0.2,
        max_output_tokens=64,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "text"}},
        include=["reasoning.encrypted_content"],
        store=False,
        prompt_cache_key="k",
        extra_headers={"session-id": "s", "thread-id": "t"},
    )
    assert call.sampling == {"temperature": 0.2, "reasoning_effort": "low"}
    assert (call.max_tokens, call.lineage) == (64, "t")
    assert call.dropped == (
        "include",
        "prompt_cache_key",
        "reasoning.summary",
        "store",
        "text.verbosity",
    )


def test_an_answer_that_ran_out_of_tokens() -> None:
    gateway = ScriptedGateway(shortened_answer(), shortened_answer())
    with client(gateway) as sdk:
        found = sdk.responses.create(model="m", input="a")
        streamed = [*sdk.responses.create(model="m", input="a", stream=True)]
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    assert streamed[-1].type == "response.incomplete"


def test_tokens_are_counted() -> None:
    with client(ScriptedGateway(123)) as sdk:
        assert sdk.responses.input_tokens.count(model="m", input="hello").input_tokens == 123


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("background", True),
        ("tool_choice", "required"),
        ("tools", [{"type": "web_search"}]),
        ("tools", [{"type": "code_interpreter", "container": {"type": "auto"}}]),
        ("format", {"format": {"type": "json_object"}}),
        ("input", [{"type": "item_reference", "id": "rs_1"}]),
        (
            "input",
            [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "https://a/b.png"}],
                }
            ],
        ),
    ],
)
def test_what_would_change_the_distribution_is_refused(name: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError, match=name):
        parsed(**{"text" if name == "format" else name: value})


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        (Refusal.KEY, "AuthenticationError", 401),
        (Refusal.SEALED, "ConflictError", 409),
        (Refusal.TOO_LARGE, "APIStatusError", 413),
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
        sdk.responses.create(model="m", input="a", stream=stream)
    assert caught.value.status_code == status


def test_an_overflow_is_an_error_or_a_failed_stream() -> None:
    gateway = ScriptedGateway(refusal(Refusal.OVERFLOW), refusal(Refusal.OVERFLOW))
    with client(gateway) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(model="m", input="a")
        created, failed = sdk.responses.create(model="m", input="a", stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert (created.type, failed.type) == ("response.created", "response.failed")
    sent = data_of(gateway.sent[1:])
    assert sent[1]["response"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Refusal.SEALED, "invalid_prompt"),
        (Refusal.OVERFLOW, "context_length_exceeded"),
        (Refusal.ENGINE, "server_error"),
    ],
)
def test_a_refusal_within_a_stream_fails_the_response(kind: Refusal, code: str) -> None:
    gateway = ScriptedGateway(refusal(kind), beats=2)
    with client(gateway) as sdk:
        last = [*sdk.responses.create(model="m", input="a", stream=True)][-1]
    assert last.type == "response.failed"
    assert last.sequence_number == 2
    assert last.response.error is not None
    assert last.response.error.code == code


def test_a_conversation_is_compacted_to_the_user_s_messages_and_a_summary() -> None:
    """OpenAI's client asks for it by `responses.compact`, and sends the items back as they are."""
    summary = "The sum of 1 and 2 is 3 — naïve, but right."
    gateway = ScriptedGateway(answer(summary), answer(), answer("Another summary."))
    said: list[Any] = [
        {"role": "user", "content": "Add 1 and 2."},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
    ]
    with client(gateway) as sdk:
        found = sdk.responses.compact(model="m", input=said, instructions="Be brief.")
        kept: list[Any] = [item.to_dict(warnings=False) for item in found.output]
        more = [*kept, {"role": "user", "content": "What was it?"}]
        sdk.responses.create(model="m", input=more, instructions="Be brief.")
        again = sdk.responses.compact(model="m", input=more)
    asked, shown, _ = gateway.calls
    assert [message.role for message in asked.messages][-1] is Role.USER
    assert asked.messages[-1].text.startswith("Summarize this conversation")
    assert found.object == "response.compaction"
    assert [item["type"] for item in kept] == ["message", "message", "compaction"]
    assert [item["content"][0]["text"] for item in kept[:2]] == ["Add 1 and 2.", "Go on."]
    assert found.usage.output_tokens == 20
    texts = [message.text for message in shown.messages]
    assert texts[:3] == ["Be brief.", "Add 1 and 2.", "Go on."]
    assert texts[3].endswith(summary)
    assert texts[4] == "What was it?"
    kinds = [item.to_dict(warnings=False)["type"] for item in again.output]
    assert kinds == ["message"] * 3 + ["compaction"], "the earlier summary is in the new one"


def test_a_compaction_of_another_provider_is_refused() -> None:
    for content in ("gAAAA", "rollart1.!", "rollart1.gAAA"):
        item: list[Any] = [{"type": "compaction", "encrypted_content": content}]
        with pytest.raises(
            openai.BadRequestError, match=r"encrypted_content is of another provider"
        ):
            parsed(input=item)
