"""Sessions: roots, turns, joins, the end, and rows."""

import asyncio
import json

import pytest

from rollart_flow.gateway.core.calls import AnswerEnd, CallRefusedError, Refusal, answer_from_json
from rollart_flow.gateway.core.exchange import Evidence
from tests.gateway.core.rig import ADDED, Client, Rig, ScriptedEngine


async def test_a_conversation_is_one_row_whose_prompts_go_on_verbatim() -> None:
    rig = Rig(ScriptedEngine(ADDED, ADDED, "3"))
    client = Client(rig.session.answer)
    first = await client.turn()
    assert first.end is AnswerEnd.TOOL_CALLS
    client.results("3")
    await client.turn()
    client.results("3")
    last = await client.turn()
    assert (last.action.text, last.end) == ("3", AnswerEnd.STOP)
    one, two, three = rig.engine.prompts
    (row,) = await rig.trajectories()
    assert row.token_ids[: len(two)] == two
    assert row.token_ids[: len(three)] == three
    assert two[: len(one)] == one
    assert [turn.start for turn in row.turns] == [0, row.turns[0].end, row.turns[1].end]
    assert [each.evidence for each in rig.exchanges] == ["root", "echo", "echo"]
    assert [each.parent for each in rig.exchanges] == [None, 0, 1]
    assert [each.reused_messages for each in rig.exchanges] == [0, 3, 5]
    assert [(each.answer_start, each.end) for each in rig.exchanges] == [
        (row.turns[n].end - len(answer), row.turns[n].end)
        for n, answer in enumerate([[*ADDED, 0], [*ADDED, 0], [*"3", 0]])
    ]
    assert last.prompt_tokens == len(three)
    assert last.cached_tokens == rig.exchanges[1].end
    assert row.tool_calls == 2
    assert rig.starts == [3]


async def test_the_ids_of_calls_are_new_in_each_answer_and_the_chain_has_its_own() -> None:
    rig = Rig(ScriptedEngine(ADDED))
    client = Client(rig.session.answer)
    ids = []
    for _ in range(3):
        answer = await client.turn()
        ids += [call.call_id for call in answer.action.tool_calls]
        client.results("3")
    assert len({*ids}) == 3
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    (row,) = await rig.trajectories()
    assert not any(each in (row.messages or "") for each in ids)
    stored = [each for each in json.loads(row.messages or "") if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in stored] == ["call00000", "call00001"]


async def test_an_answer_is_stored_as_the_client_got_it() -> None:
    rig = Rig(ScriptedEngine(ADDED))
    answer = await Client(rig.session.answer).turn()
    stored = rig.exchanges[0]
    assert answer_from_json(stored.answer or "") == answer
    assert stored.answer_id == answer.answer_id
    assert json.loads(stored.request)["tools"][0]["function"]["name"] == "add"
    await rig.trajectories()


async def test_a_sealed_session_refuses_calls() -> None:
    rig = Rig(ScriptedEngine("ok"))
    client = Client(rig.session.answer)
    await client.turn()
    await rig.trajectories()
    client.say("more")
    with pytest.raises(CallRefusedError, match="ended") as refused:
        await client.turn()
    assert refused.value.refusal is Refusal.SEALED


async def test_a_session_without_calls_has_one_empty_row() -> None:
    (row,) = await Rig(ScriptedEngine("ok")).trajectories()
    assert (row.token_ids, row.policy_version_start, row.branch) == ((), None, 0)


async def test_a_second_conversation_is_a_row_of_its_own() -> None:
    rig = Rig(ScriptedEngine("ok"))
    client, other = Client(rig.session.answer), Client(rig.session.answer)
    other.messages[0] = other.messages[1]
    await client.turn()
    await other.turn()
    first, second = await rig.trajectories()
    assert second.trajectory_id == "g1-00.1"
    assert second.shared_tokens == 0
    assert [each.evidence for each in rig.exchanges] == [Evidence.ROOT, Evidence.ROOT]
    assert [each.branch for each in rig.exchanges] == [0, 1]
    assert first.token_ids[: len(rig.engine.prompts[0])] == rig.engine.prompts[0]


async def test_counting_leaves_the_session_alone() -> None:
    rig = Rig(ScriptedEngine(ADDED, "3"))
    client = Client(rig.session.answer)
    assert await rig.session.count(client.call()) > 0
    await client.turn()
    client.results("3")
    counted = await rig.session.count(client.call())
    assert (await client.turn()).prompt_tokens == counted
    assert len(rig.exchanges) == 2
    assert len(await rig.trajectories()) == 1


async def test_the_time_between_two_calls_is_that_of_the_step() -> None:
    rig = Rig(ScriptedEngine(ADDED, "3"))
    client = Client(rig.session.answer)
    await client.turn()
    await asyncio.sleep(5)
    client.results("3")
    await client.turn()
    (row,) = await rig.trajectories()
    assert [turn.step_s for turn in row.turns] == [5.0, 0.0]
