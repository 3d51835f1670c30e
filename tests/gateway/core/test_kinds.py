"""Kinds of calls, what is trained on, and rows of single requests."""

import pytest

from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.types import Reason, Trajectory
from rollart_flow.types.messages import system, user
from tests.gateway.core.rig import ADD, ADDED, Client, Rig, ScriptedEngine

SUMMARY = "The agent has added one and two, and now it has to say the sum."
ASKED = "Your task is to create a detailed summary of the conversation so far."


async def harness(capture: CaptureLimits) -> tuple[Rig, list[Trajectory]]:
    """A session as a coding agent has it: a title, work, a sub-agent, a compaction, more work."""
    rig = Rig(ScriptedEngine("A title", ADDED, "part done", ADDED, SUMMARY, "3"), capture)
    title = Client(rig.session.answer, (system("Write a title."), user("task?")), tools=())
    await title.turn()
    main = Client(rig.session.answer)
    await main.turn()
    sub = Client(rig.session.answer, (system("You search."), user("find it")), tools=(ADD,))
    await sub.turn()
    main.results("3")
    await main.turn()
    main.results("3")
    main.say(ASKED)
    await main.turn()
    first = (system("Be brief."), user(f"This goes on from a conversation.\n{SUMMARY}"))
    await Client(rig.session.answer, first).turn()
    return rig, await rig.trajectories()


async def test_calls_are_told_apart_by_what_they_say_and_what_comes_of_them() -> None:
    rig, rows = await harness(CaptureLimits())
    assert [each.kind for each in rig.exchanges] == [
        CallKind.SIDE,
        CallKind.MAIN,
        CallKind.SUB_AGENT,
        CallKind.MAIN,
        CallKind.COMPACTION,
        CallKind.MAIN,
    ]
    assert [row.reason for row in rows] == [Reason.UNTRAINED_CALL, None, None, None]
    assert rows[0].error == "a call of kind side"
    assert rows[0].policy_version_start is None
    assert [len(row.turns) for row in rows] == [1, 3, 1, 1]


@pytest.mark.parametrize(
    ("openings", "kind"),
    [
        (("task?", "Your answer has no command."), CallKind.MAIN),
        (("task? Or not?",), CallKind.SUB_AGENT),
        (("find it", "task?"), CallKind.SUB_AGENT),
    ],
)
async def test_an_opening_that_starts_with_the_main_one_is_of_the_main_conversation(
    openings: tuple[str, ...], kind: CallKind
) -> None:
    """A client that drops an answer which it cannot parse says so right after the opening."""
    rig = Rig(ScriptedEngine("no command", "3", "3"))
    for texts in (("task?",), openings):
        messages = (system("You help."), *map(user, texts))
        client = Client(rig.session.answer, messages, tools=(ADD,))
        await client.turn()
    await rig.trajectories()
    assert [each.kind for each in rig.exchanges] == [CallKind.MAIN, kind]


async def test_a_kind_that_is_not_trained_is_a_row_of_its_own() -> None:
    rig, rows = await harness(CaptureLimits(trained=frozenset({CallKind.MAIN})))
    assert [row.reason for row in rows] == [
        Reason.UNTRAINED_CALL,
        None,
        Reason.UNTRAINED_CALL,
        Reason.UNTRAINED_CALL,
        None,
    ]
    main, compaction = rows[1], rows[2]
    assert compaction.parent == main.trajectory_id
    assert compaction.shared_tokens == len(main.token_ids)
    assert compaction.token_ids[: len(main.token_ids)] == main.token_ids
    assert [each.branch for each in rig.exchanges] == [0, 1, 3, 1, 2, 4]


async def test_each_request_may_be_a_row() -> None:
    rig, rows = await harness(CaptureLimits(per_request=True))
    assert [len(row.turns) for row in rows] == [1] * 6
    first, second, third = rows[1:4]
    assert (second.parent, third.parent) == (first.trajectory_id, second.trajectory_id)
    assert second.shared_tokens == len(first.token_ids)
    assert sum(sum(row.action_mask) for row in rows[1:]) + sum(
        version >= 0 for version in rows[0].token_versions
    ) == len(rig.engine.sampled)
    for row, exchange in zip(rows[1:4], (rig.exchanges[n] for n in (1, 3, 4)), strict=True):
        assert row.token_ids[: exchange.answer_start] == rig.engine.prompts[exchange.number]


async def test_a_summary_that_nothing_asks_for_by_name_is_known_by_what_begins_with_it() -> None:
    rig = Rig(ScriptedEngine(ADDED, SUMMARY, "3"))
    main = Client(rig.session.answer)
    await main.turn()
    main.results("3")
    main.say("Where are we?")
    await main.turn()
    await Client(rig.session.answer, (system("Be brief."), user(f"Before: {SUMMARY}"))).turn()
    await rig.trajectories()
    assert [each.kind for each in rig.exchanges] == [
        CallKind.MAIN,
        CallKind.COMPACTION,
        CallKind.MAIN,
    ]


@pytest.mark.parametrize(("turns", "kind"), [(1, CallKind.SIDE), (2, CallKind.SUB_AGENT)])
async def test_without_tools_a_lone_call_of_another_conversation_is_a_side_call(
    turns: int, kind: CallKind
) -> None:
    rig = Rig(ScriptedEngine("ok"))
    main = Client(rig.session.answer, tools=())
    await main.turn()
    other = Client(rig.session.answer, (system("Other."), user("other?")), tools=())
    for _ in range(turns):
        await other.turn()
        other.say("more")
    await rig.trajectories()
    assert [each.kind for each in rig.exchanges] == [CallKind.MAIN, *[kind] * turns]


async def test_a_rewritten_prompt_of_the_system_is_still_the_main_agent() -> None:
    rig = Rig(ScriptedEngine("ok"))
    await Client(rig.session.answer).turn()
    await Client(rig.session.answer, (system("Be very brief."), user("task?"))).turn()
    await rig.trajectories()
    assert [each.kind for each in rig.exchanges] == [CallKind.MAIN] * 2


RESUME = "Der Nutzer will die Summe von 1 und 2. Sie ist 3 und muss noch verdoppelt werden."


async def _before(rig: Rig) -> Client:
    """A conversation of two turns, whose history is about to be compacted."""
    main = Client(rig.session.answer)
    await main.turn()
    main.results("3")
    await main.turn()
    main.results("3")
    return main


async def test_claude_code_goes_on_from_a_part_of_the_summary() -> None:
    rig = Rig(ScriptedEngine(ADDED, ADDED, f"<analysis>Kurz.</analysis>\n<summary>{RESUME}"))
    main = await _before(rig)
    main.say("Schreibe auf, was bisher geschah.")
    await main.turn()
    first = user(f"Die Sitzung wird fortgesetzt.\n\nZusammenfassung:\n{RESUME}\n\nWeiter.")
    await Client(rig.session.answer, (system("Be brief."), first)).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "main", "compaction", "main"]


async def test_codex_puts_the_summary_after_the_messages_of_the_user() -> None:
    rig = Rig(ScriptedEngine(ADDED, ADDED, RESUME, "6"))
    main = await _before(rig)
    main.say("Übergib die Arbeit.")
    await main.turn()
    first = (system("Be brief."), user("task?"), user("add more"), user(f"Bisher:\n{RESUME}"))
    await Client(rig.session.answer, first).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "main", "compaction", "main"]


async def test_opencode_asks_without_tools_and_shows_the_summary_as_an_answer() -> None:
    rig = Rig(ScriptedEngine(ADDED, ADDED, RESUME, "6"))
    main = await _before(rig)
    asks = Client(rig.session.answer, (*main.messages, user("Wie geht es weiter?")), tools=())
    await asks.turn()
    shown = asks.messages[-1]
    first = (system("Be brief."), user("Was bisher?"), shown, user("Weiter."))
    await Client(rig.session.answer, first).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "main", "compaction", "main"]


async def test_a_summary_of_quoted_history_is_known_by_the_conversation_that_shows_it() -> None:
    rig = Rig(ScriptedEngine(ADDED, RESUME, "6", "7"))
    await Client(rig.session.answer).turn()
    quoted = (system("Fasse zusammen."), user("[User]: add [Assistant]: I add."))
    asks = Client(rig.session.answer, quoted, tools=())
    await asks.turn()
    first = (system("Be brief."), user("Was bisher?"), asks.messages[-1], user("Weiter."))
    later = Client(rig.session.answer, first)
    await later.turn()
    later.say("more")
    await later.turn()
    rows = await rig.trajectories()
    assert kinds_of(rig) == ["main", "compaction", "main", "main"]
    assert [row.reason for row in rows] == [None] * 3


async def test_a_summary_that_a_second_one_repeats_is_one_too() -> None:
    rig = Rig(ScriptedEngine(ADDED, RESUME, RESUME, "6"))
    await Client(rig.session.answer).turn()
    for said in ("Fasse zusammen.", "Noch einmal."):
        await Client(rig.session.answer, (system(said), user("add")), tools=()).turn()
    await Client(rig.session.answer, (system("Be brief."), user(f"<s>{RESUME}</s>"))).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "compaction", "compaction", "main"]


async def test_an_answer_that_a_rewritten_history_still_shows_is_no_summary() -> None:
    rig = Rig(ScriptedEngine(RESUME, "6"))
    main = Client(rig.session.answer)
    await main.turn()
    main.say("more")
    main.messages[0] = system("Be very brief.")
    await main.turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "main"]


async def test_a_task_that_is_about_summaries_of_conversations_is_no_compaction() -> None:
    rig = Rig(ScriptedEngine(RESUME))
    task = (system("Be brief."), user("Write a summary of this conversation of two people."))
    await Client(rig.session.answer, task).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main"]


async def test_a_short_title_of_a_conversation_is_no_compaction() -> None:
    rig = Rig(ScriptedEngine(ADDED, "Adding numbers"))
    await Client(rig.session.answer).turn()
    asks = (user("Summarize this conversation in five words: task?"),)
    await Client(rig.session.answer, asks, tools=()).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "side"]


async def test_a_sub_agent_that_compacts_its_history_stays_a_sub_agent() -> None:
    rig = Rig(ScriptedEngine(ADDED, ADDED, RESUME, "6"))
    await Client(rig.session.answer).turn()
    sub = Client(rig.session.answer, (system("You search."), user("find it")))
    await sub.turn()
    sub.results("3")
    sub.say("Schreibe auf, was bisher geschah.")
    await sub.turn()
    await Client(rig.session.answer, (system("You search."), user(f"Bisher: {RESUME}"))).turn()
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "sub_agent", "compaction", "sub_agent"]


async def test_another_session_of_the_client_with_the_same_opening_is_a_sub_agent() -> None:
    rig = Rig(ScriptedEngine("ok"))
    for lineage in ("one", "two", "one"):
        await Client(rig.session.answer).turn(lineage=lineage)
    await rig.trajectories()
    assert kinds_of(rig) == ["main", "sub_agent", "main"]


def kinds_of(rig: Rig) -> list[str]:
    return [each.kind.value for each in rig.exchanges]
