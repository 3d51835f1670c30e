"""How a call finds the answer that it goes on from."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, Refusal
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import Evidence
from rollart_flow.harness.harness import Harness
from rollart_flow.types import Message, Role
from rollart_flow.types.messages import system, user
from tests.gateway.core.rig import (
    ADD,
    ADDED,
    FIRST,
    SAY,
    Client,
    Rig,
    ScriptedEngine,
    call_of,
    called,
    other_ids,
)

Echo = Callable[[ModelAnswer], Message]


def as_it_came(answer: ModelAnswer) -> Message:
    return answer.action.as_message()


def without_ids(answer: ModelAnswer) -> Message:
    return other_ids(as_it_came(answer))


def without_thinking(answer: ModelAnswer) -> Message:
    return replace(without_ids(answer), thinking=None)


def with_thinking_changed(answer: ModelAnswer) -> Message:
    return replace(without_ids(answer), thinking=f"  {answer.action.thinking}\n\n")


def with_thinking_in_text(answer: ModelAnswer) -> Message:
    message = without_ids(answer)
    return replace(message, text=f"<think>\nhm\n</think>\n\n{message.text}", thinking=None)


def with_white_space(answer: ModelAnswer) -> Message:
    message = without_ids(answer)
    return replace(message, text=f"\n{message.text}  ")


def with_reordered_arguments(answer: ModelAnswer) -> Message:
    message = without_ids(answer)
    calls = [
        replace(call, arguments=dict(reversed([*call.arguments.items()])))
        for call in message.tool_calls
    ]
    return replace(message, tool_calls=tuple(calls))


def flattened_with_ids(answer: ModelAnswer) -> Message:
    calls = [call.as_json() for call in answer.action.tool_calls]
    return Message(Role.ASSISTANT, f"{answer.action.text}\nCalling tools:\n{calls}")


def flattened_without_ids(answer: ModelAnswer) -> Message:
    calls = [(call.name, call.arguments) for call in answer.action.tool_calls]
    return Message(Role.ASSISTANT, f"{answer.action.text}\nCalling tools:\n{calls}")


@pytest.mark.parametrize(
    ("echo", "evidence"),
    [
        (as_it_came, Evidence.ECHO),
        (without_ids, Evidence.STRUCTURE),
        (without_thinking, Evidence.STRUCTURE),
        (with_thinking_changed, Evidence.STRUCTURE),
        (with_thinking_in_text, Evidence.STRUCTURE),
        (with_white_space, Evidence.STRUCTURE),
        (with_reordered_arguments, Evidence.STRUCTURE),
        (flattened_with_ids, Evidence.ECHO),
        (flattened_without_ids, Evidence.STRUCTURE),
    ],
)
async def test_an_answer_is_known_however_its_client_sends_it_back(
    echo: Echo, evidence: Evidence
) -> None:
    said = called(("add", {"a": 1, "b": "it's"}), text="Let me add.")
    rig = Rig(ScriptedEngine(said, said, "3"))
    client = Client(rig.session.answer, echo=echo)
    for _ in range(2):
        await client.turn()
        if client.messages[-1].tool_calls:
            client.results("3")
        else:
            client.say("Observation: 3")
    await client.turn()
    assert [each.evidence for each in rig.exchanges] == [Evidence.ROOT, evidence, evidence]
    one, two, three = rig.engine.prompts
    assert two[: len(one)] == one
    (row,) = await rig.trajectories()
    assert row.token_ids[: len(three)] == three
    assert sum(row.action_mask) == len(rig.engine.sampled)


async def test_results_without_ids_answer_the_calls_in_order() -> None:
    two_calls = called(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
    rig = Rig(ScriptedEngine(two_calls, "ok"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3", "7")
    client.messages[-2:] = [replace(each, call_id=None) for each in client.messages[-2:]]
    await client.turn()
    (row,) = await rig.trajectories()
    stored = [each for each in json.loads(row.messages or "") if each["role"] == "tool"]
    assert [(each["tool_call_id"], each["content"]) for each in stored] == [
        ("call00000", "3"),
        ("call00001", "7"),
    ]


async def test_an_echoed_id_tells_equal_answers_apart() -> None:
    rig = Rig(ScriptedEngine("same"))
    first, second = (Client(rig.session.answer, echoes=True) for _ in range(2))
    await first.turn()
    await second.turn()
    for client in (first, second):
        client.say("more")
        await client.turn()
    assert [each.parent for each in rig.exchanges] == [None, None, 0, 1]
    assert rig.exchanges[3].evidence is Evidence.ECHO
    assert len(await rig.trajectories()) == 2


async def test_equal_answers_without_ids_begin_a_root() -> None:
    rig = Rig(ScriptedEngine("same"))
    first, second = (Client(rig.session.answer) for _ in range(2))
    await first.turn()
    await second.turn()
    first.say("more")
    await first.turn()
    assert rig.exchanges[2].evidence is Evidence.AMBIGUOUS
    rows = await rig.trajectories()
    assert len(rows) == 3
    # What was sampled is shown as it was sampled, though the branch is a new one.
    assert rows[2].token_ids[: len(rows[0].token_ids)] == rows[0].token_ids


async def test_thinking_tells_equal_answers_apart_where_ids_are_missing() -> None:
    rig = Rig(ScriptedEngine("<think>one</think>same", "<think>two</think>same", "ok"))
    first, second = (Client(rig.session.answer) for _ in range(2))
    assert (await first.turn()).action.thinking == "one"
    await second.turn()
    second.say("more")
    await second.turn()
    assert (rig.exchanges[2].parent, rig.exchanges[2].evidence) == (1, Evidence.STRUCTURE)
    assert len(await rig.trajectories()) == 2


async def test_a_changed_history_forks_where_it_changed() -> None:
    rig = Rig(ScriptedEngine(ADDED, ADDED, "3", "4"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    await client.turn()
    client.results("3")
    await client.turn()
    client.messages[3] = replace(client.messages[3], text="gone")
    client.say("again?")
    await client.turn()
    fork = rig.exchanges[3]
    assert (fork.parent, fork.reused_messages, fork.evidence) == (0, 3, Evidence.ECHO)
    main, branch = await rig.trajectories()
    assert branch.parent == main.trajectory_id
    assert branch.shared_tokens >= rig.exchanges[0].end
    assert not any(branch.action_mask[: fork.answer_start])
    # The answers after the change are shown with their sampled tokens.
    text = rig.codec.decode(branch.token_ids)
    assert text.count('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}') == 2


async def test_a_rewritten_prompt_of_the_system_is_a_root_that_shows_sampled_tokens() -> None:
    rig = Rig(ScriptedEngine(ADDED, "ok"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    client.messages[0] = system("Be long.")
    await client.turn()
    assert (rig.exchanges[1].parent, rig.exchanges[1].reused_messages) == (0, 0)
    first, second = await rig.trajectories()
    assert second.parent == first.trajectory_id
    sampled = first.token_ids[rig.exchanges[0].answer_start : rig.exchanges[0].end]
    shown = second.token_ids
    assert any(shown[n : n + len(sampled)] == sampled for n in range(len(shown)))


@pytest.mark.parametrize(
    "volatile",
    [
        "x-anthropic-billing-header: cc_version=2.1; cch={};\n\nBe brief.",
        "Be brief.\n<total_tokens>{} tokens left</total_tokens>",
    ],
)
async def test_what_changes_on_every_call_is_no_change(volatile: str) -> None:
    rig = Rig(ScriptedEngine(ADDED, "ok"))
    client = Client(rig.session.answer, first=(system(volatile.format("12345")), user("task?")))
    await client.turn()
    client.results("3")
    client.messages[0] = system(volatile.format("999"))
    await client.turn()
    assert rig.exchanges[1].parent == 0
    assert len(await rig.trajectories()) == 1


@pytest.mark.parametrize("begins", ["Be brief. ", ""])
async def test_what_is_declared_as_volatile_is_in_no_prompt(begins: str) -> None:
    spans = (r"It is \d+ o'clock\.", r"<nonce>.*?</nonce>")
    rig = Rig(ScriptedEngine(ADDED, "ok"), CaptureLimits(volatile=spans))
    opening = [system(f"{begins}It is 3 o'clock."), user("add <nonce>abc</nonce>3")]
    client = Client(rig.session.answer, first=opening)
    await client.turn()
    client.results("It is 3 o'clock.")
    client.messages[:2] = [system(f"{begins}It is 14 o'clock."), user("add <nonce>d</nonce>3")]
    await client.turn()
    assert [each.evidence for each in rig.exchanges] == [Evidence.ROOT, Evidence.ECHO]
    assert [each.dropped for each in rig.exchanges] == [("opening.volatile",)] * 2
    (row,) = await rig.trajectories()
    said = rig.codec.decode(row.token_ids)
    assert said.count("o'clock") == 1, "the answer of a tool is as it came"
    assert "add 3" in said
    assert "nonce" not in said + "".join(each.request for each in rig.exchanges)


@pytest.mark.parametrize("pattern", ["(", "x*", ""])
def test_a_volatile_span_is_a_pattern_that_finds_something(pattern: str) -> None:
    with pytest.raises(SettingsError, match=r"^volatile '") as caught:
        Harness("bash", volatile=[pattern])
    assert "\n" not in str(caught.value)


async def test_tools_are_part_of_the_prompt() -> None:
    rig = Rig(ScriptedEngine("ok"))
    client, other = Client(rig.session.answer), Client(rig.session.answer, tools=(ADD, SAY))
    await client.turn()
    await other.turn()
    client.tools = other.tools
    client.say("more")
    await client.turn()
    assert [each.reused_messages for each in rig.exchanges] == [0, 0, 3]
    assert len(await rig.trajectories()) == 2


async def test_answers_that_are_not_ours_are_rendered() -> None:
    shown = Message(Role.ASSISTANT, "", tool_calls=(call_of("add", a=1, b=1),))
    result = Message(Role.TOOL, "2", call_id="call_of_the_client", name="add")
    rig = Rig(ScriptedEngine("ok"))
    client = Client(rig.session.answer, first=(*FIRST, shown, result, user("and 1 + 2?")))
    await client.turn()
    client.say("more")
    await client.turn()
    assert [each.evidence for each in rig.exchanges] == [Evidence.ROOT, Evidence.STRUCTURE]
    (row,) = await rig.trajectories()
    assert sum(row.action_mask) == 2 * len(rig.codec.encode("ok")) + 2
    assert '"a": 1, "b": 1' in rig.codec.decode(row.token_ids)


async def test_an_answer_that_the_client_wrote_anew_forks_before_it() -> None:
    rig = Rig(ScriptedEngine("one", "two", "ok"))
    client = Client(rig.session.answer)
    await client.turn()
    client.say("more")
    await client.turn()
    client.messages[-1] = Message(Role.ASSISTANT, "something else")
    client.say("even more")
    await client.turn()
    assert [each.parent for each in rig.exchanges] == [None, 0, 0]
    main, fork = await rig.trajectories()
    assert fork.shared_tokens >= rig.exchanges[0].end
    assert not any(fork.action_mask[: fork.shared_tokens])
    assert sum(main.action_mask) + sum(fork.action_mask) == len(rig.engine.sampled)


async def test_messages_that_render_to_the_tokens_of_a_branch_go_on_with_it() -> None:
    rig = Rig(ScriptedEngine(ADDED, "ok"))
    client = Client(rig.session.answer)
    await client.turn()
    client.messages[0] = user("Be brief.")  # the template writes every role but one alike
    client.messages[-1] = Message(Role.ASSISTANT, ADDED)
    client.say("Observation: 3")
    await client.turn()
    call = rig.exchanges[1]
    assert (call.parent, call.evidence, call.reused_messages) == (0, Evidence.TOKENS, 3)
    (row,) = await rig.trajectories()
    assert row.token_ids[: len(rig.engine.prompts[1])] == rig.engine.prompts[1]
    stored = [each["role"] for each in json.loads(row.messages or "")]
    assert stored == ["system", "user", "assistant", "user", "assistant"]


async def test_a_conversation_that_ends_with_the_assistant_is_refused() -> None:
    rig = Rig(ScriptedEngine("one"))
    client = Client(rig.session.answer)
    await client.turn()
    with pytest.raises(CallRefusedError, match="end the conversation with") as refused:
        await client.turn()
    assert refused.value.refusal is Refusal.UNSUPPORTED
    assert [each.refusal for each in rig.exchanges] == [None, "unsupported"]
    client.say("go on")
    await client.turn()
    assert len(await rig.trajectories()) == 1


async def test_an_agent_that_writes_code_adds_to_its_answers() -> None:
    """smolagents has answers stop at `</code>`, and repeats the code as a call of its own."""
    code = "I look.\n<code>\nprint(7)\n"
    rig = Rig(ScriptedEngine(f"{code}</code>", "done"))

    def with_code_again(answer: ModelAnswer) -> Message:
        call = "[{'id': 'call_1', 'function': {'name': 'python', 'arguments': 'print(7)'}}]"
        text = f"{answer.action.text}</code>\nCalling tools:\n{call}"
        return replace(as_it_came(answer), text=text)

    client = Client(rig.session.answer, tools=(), echo=with_code_again)
    first = await client.turn(sampling={"stop": ["</code>"]})
    assert first.action.text == code
    client.say("Observation: 7")
    await client.turn()
    (row,) = await rig.trajectories()
    assert [each.evidence for each in rig.exchanges] == [Evidence.ROOT, Evidence.STRUCTURE]
    assert sum(row.action_mask) == len(rig.engine.sampled)
