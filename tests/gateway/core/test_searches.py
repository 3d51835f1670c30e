"""A search that goes on from an earlier one finds what a search from the root finds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.core.exchange import Evidence
from rollart_flow.gateway.core.forest import Forest
from rollart_flow.gateway.core.searches import KEPT_SEARCHES, Searches
from rollart_flow.gateway.core.structure import Shapes
from rollart_flow.types import AttemptLimits, Message, Role, ToolCall
from rollart_flow.types.messages import system, user
from tests.dst.captured import fuzz_gateway
from tests.gateway.core.rig import ADD, FIRST, Client, Rig, ScriptedEngine, called

OK = Message(Role.ASSISTANT, "ok")


class Compared:
    """Makes every search of the sessions of a test twice, and counts the look-ups of both ways."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resumed = self.fresh = self._looked = 0
        search, look = Forest._reached, Forest._answers

        def both(forest: Forest, call: ModelCall, shapes: Shapes) -> Mapping[int, Any]:
            kept, forest._searches = forest._searches, Searches()
            fresh = search(forest, call, shapes)
            self.fresh, self._looked = self.fresh + self._looked, 0
            forest._searches = kept
            found = search(forest, call, shapes)
            self.resumed, self._looked = self.resumed + self._looked, 0
            assert _sets(found) == _sets(fresh)
            return found

        def counted(forest: Forest, *args: Any) -> Any:
            self._looked += 1
            return look(forest, *args)

        monkeypatch.setattr(Forest, "_reached", both)
        monkeypatch.setattr(Forest, "_answers", counted)


def _sets(reached: Mapping[int, Any]) -> dict[int, set[Any]]:
    return {used: {(id(turn), match) for turn, _, match in some} for used, some in reached.items()}


def test_the_same_answers_are_found_whatever_clients_do(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    wrong = [(each.command, each.error) for each in fuzz_gateway(range(120)) if not each.ok]
    assert wrong == []
    assert 100 < compared.resumed < compared.fresh / 2


async def test_each_call_looks_up_its_last_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    rig = Rig(ScriptedEngine("ok"))
    client = Client(rig.session.answer)
    for turn in range(30):
        await client.turn()
        client.say(f"and {turn}?")
    assert compared.resumed == 29
    await rig.trajectories()


async def test_an_argument_of_another_type_is_another_message() -> None:
    rig = Rig(ScriptedEngine(called(("add", {"a": 1, "b": 2})), "ok"))
    client = Client(rig.session.answer, echo=_with_ids_of_its_own)
    await client.turn()
    client.results("3")
    await client.turn()
    client.say("and now?")
    await client.turn()
    asked = client.messages[2]
    changed = replace(asked.tool_calls[0], arguments={"a": True, "b": 2})
    assert replace(asked, tool_calls=(changed,)) == asked, "Python takes both for equal"
    client.messages[2] = replace(asked, tool_calls=(changed,))
    client.say("again?")
    await client.turn()
    evidence = [each.evidence for each in rig.exchanges]
    assert evidence[:3] == [Evidence.ROOT, Evidence.STRUCTURE, Evidence.STRUCTURE]
    assert [each.reused_messages for each in rig.exchanges] == [0, 3, 5, 0]
    await rig.trajectories()


async def test_an_answer_that_comes_late_is_found_beside_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Compared(monkeypatch)
    rig = Rig(ScriptedEngine("ok"))
    first = [*FIRST]
    await _ask(rig, first)
    await _ask(rig, [*first, OK, user("and?")])
    await _ask(rig, first)
    await _ask(rig, [*first, OK, user("or?")])
    assert rig.exchanges[3].evidence is Evidence.AMBIGUOUS
    await rig.trajectories()


async def test_an_id_that_is_sent_back_tells_equal_messages_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Compared(monkeypatch)
    rig = Rig(ScriptedEngine("ok"))
    first = [*FIRST]
    ids = [(await _ask(rig, first)).answer_id for _ in range(2)]
    for text, answer_id in zip(("and?", "or?", "but?"), (*ids, ids[0]), strict=True):
        await _ask(rig, [*first, OK, user(text)], {2: (answer_id,)})
    assert [each.parent for each in rig.exchanges[2:]] == [0, 1, 0]
    await rig.trajectories()


async def test_a_prompt_that_was_too_short_becomes_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Compared(monkeypatch)
    rig = Rig(ScriptedEngine("ok"), limits=AttemptLimits(context_tokens=4000, max_branches=40))
    first = [*FIRST]
    await _ask(rig, first)
    longer = [*first, OK, user("one"), user("two")]
    await _ask(rig, longer)
    for agent in range(KEPT_SEARCHES):
        await _ask(rig, [system(f"{agent}"), user("task")])
    await _ask(rig, longer[:4])
    await _ask(rig, [*longer, OK, user("three")])
    assert rig.exchanges[-1].parent == 1
    await rig.trajectories()


async def test_a_session_keeps_few_searches() -> None:
    rig = Rig(ScriptedEngine("ok"))
    for agent in range(KEPT_SEARCHES + 4):
        client = Client(rig.session.answer)
        client.say(f"I am {agent}")
        await client.turn()
        client.say("and?")
        await client.turn()
    assert len(rig.session._forest._searches._kept) == KEPT_SEARCHES
    await rig.trajectories()


async def _ask(
    rig: Rig, messages: Sequence[Message], echoes: Mapping[int, tuple[str, ...]] | None = None
) -> ModelAnswer:
    call = ModelCall(wire="chat", messages=tuple(messages), tools=(ADD,), echoes=echoes or {})
    return await rig.session.answer(call)


def _with_ids_of_its_own(answer: Any) -> Message:
    message: Message = answer.action.as_message()
    calls = [
        ToolCall(f"own{n}", each.name, each.arguments) for n, each in enumerate(message.tool_calls)
    ]
    return replace(message, tool_calls=tuple(calls))
