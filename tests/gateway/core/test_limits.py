"""The ends of a session: budgets, the context, and the end of its attempt."""

import asyncio
import json

import pytest

from rollart_flow.gateway.core.calls import AnswerEnd, CallRefusedError, Refusal
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.describing import UNPLACED_CHARS
from rollart_flow.gateway.core.session import BUDGET_TEXT
from rollart_flow.types import AttemptLimits, Reason
from rollart_flow.types.messages import user
from tests.gateway.core.rig import ADD, ADDED, FIRST, Client, Rig, Script, ScriptedEngine, called
from tests.gateway.core.test_retries import settle


async def test_a_call_beyond_the_budget_gets_a_text_of_the_gateway() -> None:
    rig = Rig(ScriptedEngine(ADDED), CaptureLimits(max_calls=2))
    client = Client(rig.session.answer)
    for _ in range(2):
        await client.turn()
        client.results("3")
    for _ in range(4):
        last = await client.turn()
        client.say("really?")
        assert (last.action.text, last.end, last.control) == (BUDGET_TEXT, AnswerEnd.STOP, True)
        assert last.action.tool_calls == ()
    assert len(rig.engine.prompts) == 2
    assert [each.control for each in rig.exchanges] == [False, False, True, True]
    (row,) = await rig.trajectories()
    assert BUDGET_TEXT not in rig.codec.decode(row.token_ids)


async def test_the_budget_of_tokens_cuts_the_last_answer() -> None:
    rig = Rig(ScriptedEngine("0123456789"), CaptureLimits(max_tokens=15))
    client = Client(rig.session.answer)
    await client.turn()
    client.say("more")
    assert (await client.turn()).end is AnswerEnd.LENGTH
    client.say("more")
    assert (await client.turn()).control
    await rig.trajectories()
    assert len(rig.engine.sampled) == 15


async def test_a_branch_too_many_ends_the_turn() -> None:
    limits = AttemptLimits(context_tokens=4000, max_branches=2)
    rig = Rig(ScriptedEngine("ok"), limits=limits)
    answers = []
    for n in range(3):
        client = Client(rig.session.answer, first=[*FIRST, user(f"{n}")])
        answers.append(await client.turn())
    assert [each.control for each in answers] == [False, False, True]
    assert len(await rig.trajectories()) == 2


async def test_a_prompt_that_fills_the_context_is_refused_and_changes_nothing() -> None:
    rig = Rig(ScriptedEngine(ADDED, "ok"), limits=AttemptLimits(context_tokens=250))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3" * 300)
    with pytest.raises(CallRefusedError, match="the context ends at 250") as refused:
        await client.turn()
    assert (refused.value.refusal, refused.value.limit) == (Refusal.OVERFLOW, 250)
    assert refused.value.tokens is not None
    assert refused.value.tokens > 300
    client.messages.pop()
    client.results("3")
    await client.turn()
    (row,) = await rig.trajectories()
    assert "333" not in rig.codec.decode(row.token_ids)


async def test_an_answer_has_no_more_tokens_than_fit() -> None:
    rig = Rig(ScriptedEngine("x" * 300), limits=AttemptLimits(context_tokens=150))
    answer = await Client(rig.session.answer).turn(max_tokens=200)
    prompt = len(rig.engine.prompts[0])
    assert answer.answer_tokens == 150 - prompt == rig.exchanges[0].max_tokens
    assert answer.end is AnswerEnd.LENGTH
    await rig.trajectories()


@pytest.mark.parametrize(("asked", "most"), [(7, 7), (None, 400), (100_000, 400), (0, 1)])
async def test_the_smallest_limit_of_tokens_holds(asked: int | None, most: int) -> None:
    rig = Rig(ScriptedEngine("x" * 1000))
    answer = await Client(rig.session.answer).turn(max_tokens=asked)
    assert (answer.answer_tokens, rig.exchanges[0].max_tokens) == (most, most)
    await rig.trajectories()


async def test_sampling_is_that_of_the_attempt_and_what_was_asked_is_recorded() -> None:
    rig = Rig(ScriptedEngine("ok"))
    await Client(rig.session.answer).turn(sampling={"temperature": 0.1, "top_p": 0.5}, max_tokens=9)
    sampling = rig.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 1.0, 9)
    assert rig.exchanges[0].requested == {"temperature": 0.1, "top_p": 0.5, "max_tokens": 9}
    await rig.trajectories()


@pytest.mark.parametrize("stop", [{"stop": "Obs"}, {"stop_sequences": ["zzz", "Obs"]}])
async def test_a_stop_text_of_the_client_cuts_what_it_gets(stop: dict[str, object]) -> None:
    rig = Rig(ScriptedEngine("Think. Observation: 3", "ok"))
    client = Client(rig.session.answer)
    answer = await client.turn(sampling=stop)
    assert (answer.action.text, answer.end) == ("Think. ", AnswerEnd.STOP)
    client.say("more")
    await client.turn()
    assert rig.exchanges[1].parent == 0
    (row,) = await rig.trajectories()
    assert "Observation: 3" in rig.codec.decode(row.token_ids)


async def test_calls_of_a_client_without_tools_are_text() -> None:
    rig = Rig(ScriptedEngine(called(("add", {"a": 1}), text="I call "), "ok"))
    client = Client(rig.session.answer, tools=())
    answer = await client.turn()
    assert answer.action.tool_calls == ()
    assert answer.action.text.startswith("I call <tool_call>")
    client.say("more")
    await client.turn()
    assert rig.exchanges[1].parent == 0
    await rig.trajectories()


async def test_the_end_of_the_attempt_answers_what_is_under_way_and_what_follows() -> None:
    rig = Rig(ScriptedEngine(Script("a long answer", chunks=3, waits=asyncio.Event())))
    client = Client(rig.session.answer, tools=(ADD,))
    task = asyncio.ensure_future(client.turn())
    await settle()
    rig.session.finish("The attempt is over.")
    answer = await task
    assert (answer.action.text, answer.control) == ("The attempt is over.", True)
    client.say("more")
    assert (await client.turn()).action.text == "The attempt is over."
    (row,) = await rig.trajectories()
    assert row.reason is Reason.UNANSWERED
    assert not any(row.action_mask)
    assert rig.exchanges[0].control


async def test_sealing_waits_for_what_is_under_way() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script("one", waits=go)))
    client = Client(rig.session.answer)
    task = asyncio.ensure_future(client.turn())
    await settle()
    sealing = asyncio.ensure_future(rig.session.seal())
    await settle()
    assert not sealing.done()
    with pytest.raises(CallRefusedError, match="ended"):
        await Client(rig.session.answer).turn()
    go.set()
    await sealing
    await task
    (row,) = await rig.trajectories()
    assert row.reason is None


async def test_of_a_call_without_a_place_the_last_messages_are_kept() -> None:
    rig = Rig(ScriptedEngine("ok"), capture=CaptureLimits(max_calls=2))
    client = Client(rig.session.answer)
    await client.turn()
    client.say("on")
    await client.turn()
    for number in range(30):
        client.say(f"{number} " + "x" * 1000)
    await client.turn()
    client.say("y" * (2 * UNPLACED_CHARS))
    await client.turn()
    short, cut = (json.loads(each.request) for each in rig.exchanges[2:])
    assert all(len(each.request) < 1.1 * UNPLACED_CHARS for each in rig.exchanges)
    assert short["left_out"] + len(short["messages"]) == 5 + 30
    assert [each["content"][:3] for each in short["messages"][-2:]] == ["28 ", "29 "]
    assert short["tools"][0]["function"]["name"] == "add"
    assert cut["messages"] == [{"role": "user", "content": "y" * UNPLACED_CHARS}]
    await rig.trajectories()
