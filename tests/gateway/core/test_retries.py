"""Retries, hang-ups, and calls that are under way at once."""

import asyncio

import pytest

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, Refusal
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import Evidence
from rollart_flow.types import Outcome, Reason
from rollart_flow.types.messages import user
from tests.gateway.core.rig import ADDED, FIRST, Client, Rig, Script, ScriptedEngine


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_same_request_joins_the_call_that_is_under_way() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script(ADDED, waits=go)))
    call = Client(rig.session.answer).call(digest="d")
    tasks = [asyncio.ensure_future(rig.session.answer(call)) for _ in range(3)]
    await settle()
    go.set()
    answers = await asyncio.gather(*tasks)
    assert answers[0] == answers[1] == answers[2]
    assert [each.joins for each in rig.exchanges] == [2]
    (row,) = await rig.trajectories()
    assert len(row.turns) == 1


async def test_a_marked_retry_gets_the_stored_answer_and_another_one_a_new_sample() -> None:
    rig = Rig(ScriptedEngine("one", "two", "three"))
    client = Client(rig.session.answer)
    first = await rig.session.answer(client.call(digest="d"))
    again = await rig.session.answer(client.call(digest="d", retry=True))
    other = await rig.session.answer(client.call(digest="d"))
    assert first == again
    assert other.action.text == "two"
    assert [each.replays for each in rig.exchanges] == [1, 0]
    rows = await rig.trajectories()
    assert [row.shared_tokens for row in rows] == [0, 0]


async def test_a_new_sample_of_a_later_turn_shares_its_prompt() -> None:
    rig = Rig(ScriptedEngine(ADDED, "one", "two"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    await rig.session.answer(client.call())
    await rig.session.answer(client.call())
    main, fork = await rig.trajectories()
    assert fork.parent == main.trajectory_id
    assert fork.shared_tokens == len(rig.engine.prompts[2])
    assert rig.engine.prompts[1] == rig.engine.prompts[2]


async def test_a_caller_that_leaves_does_not_lose_the_turn() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script("one", waits=go), "two"))
    client = Client(rig.session.answer)
    call = client.call(digest="d")
    gone = asyncio.ensure_future(rig.session.answer(call))
    await settle()
    gone.cancel()
    await settle()
    go.set()
    await settle()
    assert rig.exchanges[0].hung_up
    answer = await rig.session.answer(client.call(digest="d", retry=True))
    assert answer.action.text == "one"
    client.messages.append(answer.action.as_message())
    client.say("more")
    await client.turn()
    (row,) = await rig.trajectories()
    assert sum(row.action_mask) == len(rig.engine.sampled)


async def test_an_answer_that_nobody_got_waits_for_the_same_request() -> None:
    """Many programs do not mark a request that they send again after a lost connection."""
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script("one", waits=go), "two"))
    call = Client(rig.session.answer).call(digest="d")
    gone = asyncio.ensure_future(rig.session.answer(call))
    await settle()
    gone.cancel()
    await settle()
    go.set()
    await settle()
    assert (await rig.session.answer(call)).action.text == "one"
    assert (await rig.session.answer(call)).action.text == "two"
    assert [each.replays for each in rig.exchanges] == [1, 0]


async def test_an_answer_whose_connection_ended_with_it_is_repeated_once() -> None:
    rig = Rig(ScriptedEngine("one", "two"))
    call = Client(rig.session.answer).call(digest="d")
    said = []
    for _ in range(3):
        said.append((await rig.session.answer(call)).action.text)
        rig.session.unread(call, sent=True)
    assert said == ["one", "one", "two"]
    assert [each.replays for each in rig.exchanges] == [1, 0]
    await rig.trajectories()


async def test_an_answer_that_could_not_be_sent_waits_for_the_same_request() -> None:
    rig = Rig(ScriptedEngine("one", "two"))
    client = Client(rig.session.answer)
    call = client.call(digest="d")
    await rig.session.answer(call)
    rig.session.unread(call, sent=False)
    assert rig.exchanges[0].hung_up
    assert (await client.turn(digest="d")).action.text == "one"
    client.say("more")
    await client.turn()
    (row,) = await rig.trajectories()
    assert sum(row.action_mask) == len(rig.engine.sampled)


@pytest.mark.parametrize("repeats_lost", [False, True])
async def test_the_end_of_connections_says_nothing_of_a_client_that_ends_each(
    repeats_lost: bool,
) -> None:
    """Unless such a client, as Codex, is known to repeat only what was lost."""
    capture = CaptureLimits(repeats_lost=repeats_lost)
    rig = Rig(ScriptedEngine(ADDED, "one", "two"), capture)
    client = Client(rig.session.answer)
    first = client.call(digest="a")
    await client.turn(digest="a")
    rig.session.unread(first, sent=True)
    client.results("3")
    second = client.call(digest="b")
    await rig.session.answer(second)
    rig.session.unread(second, sent=True)
    again = await rig.session.answer(second)
    assert again.action.text == ("one" if repeats_lost else "two")
    await rig.trajectories()


async def test_an_answer_that_nobody_got_is_a_row_with_a_reason() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script("one", waits=go), "two"))
    client = Client(rig.session.answer)
    gone = asyncio.ensure_future(rig.session.answer(client.call()))
    await settle()
    gone.cancel()
    await settle()
    go.set()
    await settle()
    await client.turn()
    lost, kept = await rig.trajectories()
    assert (lost.reason, lost.error) == (Reason.UNANSWERED, "the client left before the answer")
    assert lost.outcome is Outcome.COMPLETED
    assert lost.policy_version_start is None
    assert kept.reason is None


async def test_parallel_calls_on_one_end_fork() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(ADDED, Script("one", waits=go), "two"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    slow = asyncio.ensure_future(rig.session.answer(client.call(digest="a")))
    await settle()
    client.say("and quickly")
    quick = await rig.session.answer(client.call(digest="b"))
    go.set()
    assert [quick.action.text, (await slow).action.text] == ["two", "one"]
    main, fork = await rig.trajectories()
    assert fork.parent == main.trajectory_id
    assert fork.shared_tokens >= rig.exchanges[0].end


async def test_sub_agents_run_at_once_in_branches_of_their_own() -> None:
    rig = Rig(ScriptedEngine(ADDED))
    clients = [Client(rig.session.answer, first=(*FIRST[:1], user(f"part {n}"))) for n in range(8)]

    async def converse(client: Client) -> None:
        for _ in range(3):
            await client.turn()
            client.results("3")

    await asyncio.gather(*map(converse, clients))
    rows = await rig.trajectories()
    assert [len(row.turns) for row in rows] == [3] * 8
    assert {each.evidence for each in rig.exchanges[8:]} == {Evidence.ECHO}


async def test_a_failed_generation_keeps_its_tokens_and_a_retry_starts_before_them() -> None:
    rig = Rig(ScriptedEngine(ADDED, Script("broken", fails_after=3), "fine"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    with pytest.raises(CallRefusedError, match="broke") as refused:
        await rig.session.answer(client.call(digest="d"))
    assert refused.value.refusal is Refusal.ENGINE
    await rig.session.answer(client.call(digest="d", retry=True))
    assert rig.engine.prompts[1] == rig.engine.prompts[2]
    main, lost, fork = await rig.trajectories()
    assert (main.reason, fork.reason) == (None, None)
    assert lost.reason is Reason.UNANSWERED
    assert "broke" in (lost.error or "")
    assert [row.token_ids[row.shared_tokens :] for row in (lost,)] != [()]
    assert rig.exchanges[1].refusal == "engine"
    assert rig.exchanges[1].branch == 1


async def test_a_failure_without_a_token_leaves_the_branch_as_it_was() -> None:
    rig = Rig(ScriptedEngine(ADDED, Script("broken", fails_after=0), "fine"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    with pytest.raises(CallRefusedError):
        await client.turn()
    await client.turn()
    assert len(await rig.trajectories()) == 1


async def test_a_branch_shares_nothing_that_a_call_under_way_may_take_back() -> None:
    rig = Rig(ScriptedEngine(ADDED, Script(fails_after=0), "3"))
    client = Client(rig.session.answer)
    await client.turn()
    client.results("3")
    calls = [rig.session.answer(client.call(digest=digest)) for digest in ("one", "two")]
    fails, answered = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(fails, CallRefusedError)
    assert isinstance(answered, ModelAnswer)
    first, branch = await rig.trajectories()
    assert branch.parent == first.trajectory_id
    assert branch.shared_tokens == len(first.token_ids)


async def test_too_many_calls_at_once_are_told_to_wait() -> None:
    go = asyncio.Event()
    rig = Rig(ScriptedEngine(Script("one", waits=go)), CaptureLimits(max_under_way=1))
    client = Client(rig.session.answer)
    first = asyncio.ensure_future(rig.session.answer(client.call()))
    await settle()
    with pytest.raises(CallRefusedError, match="try again") as refused:
        await rig.session.answer(client.call())
    assert (refused.value.refusal, refused.value.limit) == (Refusal.BUSY, 1)
    go.set()
    await first
    assert len(await rig.trajectories()) == 1
