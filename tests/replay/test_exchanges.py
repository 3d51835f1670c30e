"""Calls of captured agents that are rendered and parsed again, and what a difference looks like."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.calls import answer_from_json, answer_json
from rollart_flow.gateway.core.stored import with_exchanges
from rollart_flow.models.chat.formats import format_of
from rollart_flow.replay import replay_calls, replay_exchanges
from rollart_flow.replay.exchanges import SessionAgain, SessionReplay
from rollart_flow.replay.run_exchanges import try_parser
from rollart_flow.simulation import run
from rollart_flow.store import Run
from rollart_flow.types import Trajectory
from rollart_flow.types.exchanges import StoredExchange
from tests.captured import add_tokenizer, captured_run
from tests.gateway.core.rig import ADDED, CODEC, Client, Rig, ScriptedEngine
from tests.sessions import session_attempt, wall

SEEDS = range(40)


def again(branches: Sequence[Trajectory]) -> SessionReplay:
    return run(SessionAgain(branches, CODEC).run())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_calls_of_any_session_are_the_same_again(seed: int) -> None:
    branches = session_attempt(f"t{seed}", seed)
    found = again(branches)
    sampled = [call for call in branches[0].exchanges or () if call.sampled_tokens]
    assert found.difference is None
    assert (found.calls, found.replayed) == (len(sampled), len(sampled))


def two_calls() -> tuple[Trajectory, ...]:
    """An attempt whose second call answers a tool's."""

    async def play() -> tuple[Trajectory, ...]:
        rig = Rig(ScriptedEngine(ADDED, "three"))
        client = Client(rig.session.answer)
        await client.turn()
        client.results("3")
        await client.turn()
        return with_exchanges(await rig.trajectories(), rig.exchanges, rig.codec, wall)

    return run(play())


def changed(
    branches: Sequence[Trajectory], number: int, change: Callable[[StoredExchange], StoredExchange]
) -> list[Trajectory]:
    """An attempt, one of whose calls is stored otherwise."""
    calls = [change(c) if c.number == number else c for c in branches[0].exchanges or ()]
    return [replace(branches[0], exchanges=tuple(calls)), *branches[1:]]


def test_an_answer_that_was_parsed_otherwise_is_the_first_difference() -> None:
    def other(call: StoredExchange) -> StoredExchange:
        answer = answer_from_json(call.answer or "")
        action = replace(answer.action, text="four")
        return replace(call, answer=answer_json(replace(answer, action=action)))

    found = again(changed(two_calls(), 1, other))
    assert str(found.difference) == "call 1: answer: content: recorded '\"four\"', now '\"three\"'"
    assert (found.calls, found.replayed) == (2, 2)


def test_a_call_that_was_stored_with_other_arguments_differs() -> None:
    def other(call: StoredExchange) -> StoredExchange:
        return replace(call, answer=(call.answer or "").replace('"a":1', '"a":7'))

    found = again(changed(two_calls(), 0, other))
    assert found.difference is not None
    assert (found.difference.call, found.difference.what) == (0, "answer")
    assert found.difference.said.startswith("tool_calls: recorded")
    assert found.replayed == 1, "what follows a difference is not compared"


def test_a_prompt_that_is_rendered_otherwise_differs_at_a_token() -> None:
    def other(call: StoredExchange) -> StoredExchange:
        return replace(call, request=call.request.replace('"content":"3"', '"content":"5"'))

    branches = two_calls()
    found = again(changed(branches, 1, other))
    assert found.difference is not None
    assert (found.difference.call, found.difference.what) == (1, "prompt")
    start = (branches[0].exchanges or ())[1].answer_start
    assert f"of {start}: recorded '3" in found.difference.said
    assert ", now '5" in found.difference.said


def test_a_request_that_is_damaged_or_refused_now_is_a_difference() -> None:
    branches = two_calls()
    damaged = again(changed(branches, 0, lambda call: replace(call, request="{")))
    assert damaged.difference is not None
    assert "the stored request cannot be read: JSONDecodeError" in str(damaged.difference)
    form = json.dumps({"messages": [{"role": "assistant", "content": "hm"}]})
    refused = again(changed(branches, 0, lambda call: replace(call, request=form)))
    assert str(refused.difference).startswith("call 0: call: refused now: the last message is")


def test_a_format_is_tried_on_every_answer() -> None:
    same, none = try_parser(two_calls(), CODEC, format_of("", "hermes"))
    assert (same.replayed, none) == (2, [])
    replayed, found = try_parser(two_calls(), CODEC, format_of("", "mistral"))
    assert replayed.replayed == 2
    (only,) = found
    assert (only.call, only.what) == (0, "parser")
    assert "add(" in only.said


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of some attempts, with the tokenizer that its policy has."""
    made = [session_attempt(f"t{seed}", seed) for seed in range(70)]
    folder = tmp_path_factory.mktemp("store")
    written = captured_run(folder, made)
    add_tokenizer(written)
    return written


def test_all_calls_of_a_run_are_replayed(stored: Run) -> None:
    found = replay_exchanges(stored.uri)
    calls = stored.exchanges.select("answer_start").drop_nulls().collect().height
    assert (found.attempts, found.calls, found.differing, found.first) == (70, calls, 0, [])
    assert found.parser == CODEC.parser_version
    assert replay_calls(stored.uri, "t3").difference is None


def test_a_parser_is_tried_on_a_run(stored: Run) -> None:
    found = replay_exchanges(stored.uri, "mistral")
    assert not found.equal
    assert found.differing >= len(found.first) == 10
    assert {each["what"] for each in found.first} == {"parser"}
    assert replay_exchanges(stored.uri, "hermes").equal
    with pytest.raises(SettingsError, match="no format 'x' of answers; there are "):
        replay_exchanges(stored.uri, "x")


def test_an_attempt_of_an_environment_has_no_calls_to_replay(stored: Run, tmp_path: Path) -> None:
    branches = session_attempt("t", 1)
    other = captured_run(tmp_path, [(replace(branches[0], exchanges=None),)])
    add_tokenizer(other)
    with pytest.raises(SettingsError, match="'t' is not of a captured agent"):
        replay_calls(other.uri, "t")
    with pytest.raises(SettingsError, match="no trajectory 'u'"):
        replay_calls(other.uri, "u")
