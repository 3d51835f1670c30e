"""Attempts of several branches: sub-agents, retries, shortened chains, and rendered history."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.control.environment import Retold
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.replay.episode import in_order
from rollart_flow.replay.spoken import recorded_turns, spoken_again
from rollart_flow.rows import trajectories_table, trajectory_from_row
from rollart_flow.types import (
    Action,
    AttemptLimits,
    Chunk,
    FinishReason,
    GenerationRequest,
    Message,
    Observation,
    Outcome,
    Reason,
    Role,
    Tool,
    Trajectory,
)
from rollart_flow.types.branching import Retry, Return, StepObservation, SubAgent
from rollart_flow.types.messages import messages_of, system, tool_result, user
from rollart_flow.types.token_ids import TokenIds
from tests.control.rollout.test_dialogue import ADD, ASSIGNMENT, JsonCodec, JsonConversation
from tests.dst.dialogue_codec import retold
from tests.dst.environments import wall
from tests.dst.log import EventLog
from tests.dst.plans import STOP

FIRST = (system("Be brief."), user("task?"))
GO_ON = [user("Go on.")]
END = "end"
Said = str | Mapping[str, Any]


class NumberedConversation(JsonConversation):
    """Numbers the calls of its chain; in rendered history, actions have no thinking."""

    def __init__(self) -> None:
        self.calls = 0
        self.messages: list[Message] = []

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        again = NumberedConversation()
        whole = again.observe((*self.messages, *messages_of(observation)))
        return retold(again, whole, token_ids)

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        shown = messages_of(observation)
        self.messages += shown
        lines = [json.dumps({**each.as_json(), "reasoning_content": None}) for each in shown]
        return tuple(map(ord, "".join(lines) + ("" if ended else "!")))

    def act(self, token_ids: Sequence[int]) -> Action:
        action = super().act(token_ids)
        calls = []
        for call in action.tool_calls:
            calls.append(type(call)(f"c{self.calls}", call.name, call.arguments, call.error))
            self.calls += 1
        made = Action(action.text, action.thinking, tuple(calls))
        self.messages.append(made.as_message())
        return made


class NumberedCodec(JsonCodec):
    def __init__(self, *, branches_history: bool = False) -> None:
        self.branches_history = branches_history

    def converse(self, tools: Sequence[Tool] = ()) -> NumberedConversation:
        return NumberedConversation()


class Engine:
    """Says one thing after the other, the last one again and again; no logprob comes twice."""

    worker, hardware, stands_for = "engine-cpu-0", "cpu", frozenset({"cpu"})

    def __init__(self, said: Sequence[Said]) -> None:
        self._said = [each if isinstance(each, str) else json.dumps(each) for each in said]
        self.sampled: dict[float, int] = {}
        """Sampled tokens by their logprobs."""
        self.prompts: list[Sequence[int]] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.prompts.append(request.prompt_ids)
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        ids = (*map(ord, said), STOP)[: request.sampling.max_tokens]
        logprobs = tuple(-1.0 - len(self.sampled) - n for n in range(len(ids)))
        self.sampled |= dict(zip(logprobs, ids, strict=True))
        end = FinishReason.STOP if ids[-1] == STOP else FinishReason.LENGTH
        yield Chunk(request.request_id, 0, ids, logprobs, (3,) * len(ids), end)

    async def abort(self, request_id: str) -> None: ...


class Script:
    """Returns one observation after the other; END ends the episode."""

    def __init__(self, steps: Sequence[Any], first: Observation, tools: Any = (ADD,)) -> None:
        self.tools: Sequence[Tool] | None = tools
        self._steps, self._first = list(steps), first
        self.actions: list[Any] = []

    async def reset(self, seed: int, task: str) -> tuple[Observation, Mapping[str, object]]:
        return self._first, {}

    async def step(
        self, action: Any
    ) -> tuple[StepObservation, float, bool, bool, Mapping[str, object]]:
        self.actions.append(action)
        shown = self._steps.pop(0) if self._steps else END
        if shown == "answers":
            shown = [tool_result(each, "found") for each in action.tool_calls] or GO_ON
        return ("", 1.0, True, False, {}) if shown == END else (shown, 0.25, False, False, {})

    async def close(self) -> None: ...


async def played(
    steps: Sequence[Any],
    said: Sequence[Said] = ({"text": "yes"},),
    *,
    first: Observation = FIRST,
    tools: Any = (ADD,),
    codec: JsonCodec | None = None,
    **limits: Any,
) -> tuple[tuple[Trajectory, ...], Script]:
    """The branches of an attempt, of which everything that always holds has been checked."""
    script, engine = Script(steps, first, tools), Engine(said)
    codec = codec or NumberedCodec()
    bounds = AttemptLimits(**{"max_turns": 30, "context_tokens": 5_000, **limits})
    proxy = LLMProxy([engine], EventLog())
    manager = EnvManager(ASSIGNMENT, lambda: script, codec, proxy, bounds, wall)
    branches = await manager.run()
    check(branches, engine, codec)
    assert len(branches) <= bounds.max_branches
    return branches, script


def check(branches: Sequence[Trajectory], engine: Engine, codec: JsonCodec) -> None:
    by_id = {each.trajectory_id: each for each in branches}
    assert [*by_id] == ["g1-00", *(f"g1-00.{n}" for n in range(1, len(branches)))]
    drawn = []
    for index, branch in enumerate(branches):
        assert (branch.branch, branch.episode_id) == (index, "g1-00")
        assert (branch.parent is None) == (index == 0)
        shared = branch.shared_tokens
        if branch.parent is not None:
            assert branch.token_ids[:shared] == by_id[branch.parent].token_ids[:shared]
            assert any(branch.action_mask), "a branch in which nothing was sampled"
        assert not any(branch.action_mask[:shared])
        assert [turn.start for turn in branch.turns[:1]] in ([shared], [])
        for token, action, logprob, version in zip(
            branch.token_ids,
            branch.action_mask,
            branch.logprobs,
            branch.token_versions,
            strict=True,
        ):
            assert (version, logprob < 0) == ((3, True) if action else (-1, False))
            drawn += [(logprob, token)] if action else []
        stored = trajectory_from_row(trajectories_table([branch]).to_pylist()[0])
        assert stored == branch
        if branch.messages is not None:
            check_messages(stored, codec)
    assert len(drawn) == len(engine.sampled), "a token that was sampled is no action, or twice"
    assert dict(drawn) == engine.sampled
    numbers = [turn.number for _, _, turn in in_order(branches)]
    assert numbers == list(range(len(numbers))), "each turn of the attempt is in one branch"


def check_messages(branch: Trajectory, codec: JsonCodec) -> None:
    spoken = spoken_again(branch, codec)
    for turn, again, recorded in zip(branch.turns, spoken, recorded_turns(branch), strict=True):
        shown = branch.token_ids[turn.start : turn.start + len(again.observation_ids)]
        assert shown == again.observation_ids
        assert again.action == recorded.action


def texts(branch: Trajectory) -> list[tuple[int, str, str]]:
    """(turn, role, beginning of the text) of each message of a branch."""
    forms = json.loads(branch.messages or "[]")
    return [(form["turn"], form["role"], form["content"][:9]) for form in forms]


async def test_a_sub_agent_has_messages_and_tools_of_its_own_and_returns() -> None:
    agent = SubAgent([system("Sub."), user("help?")], (ADD,))
    call = {"calls": [["add", {"a": 1, "b": 2}]]}
    steps = [agent, "answers", Return([user("It says 3.")])]
    (one, sub), script = await played(steps, [{"text": "ask"}, call, {"text": "3"}, {"text": "ok"}])
    assert one.outcome == sub.outcome == Outcome.COMPLETED
    assert [turn.action for turn in one.turns] == ["ask", "ok"]
    assert [turn.reward for turn in one.turns] == [0.25, 1.0]
    assert [turn.action for turn in sub.turns] == ["", "3"]
    assert (sub.parent, one.tool_calls, sub.tool_calls) == ("g1-00", 0, 1)
    assert [turn for turn, _, _ in texts(one)] == [0, 0, 0, 3, 3]
    assert [turn for turn, _, _ in texts(sub)] == [1, 1, 1, 2, 2]
    assert [action.text for action in script.actions] == ["ask", "", "3", "ok"]


async def test_sub_agents_nest_and_one_may_follow_another() -> None:
    steps = [
        SubAgent("a"), SubAgent("b"), Return("b is done"),
        Return(SubAgent("c")), Return(Return("too far")),
    ]  # fmt: skip
    branches, _ = await played(steps)
    assert [each.parent for each in branches] == [None, "g1-00", "g1-00.1", "g1-00"]
    assert [len(each.turns) for each in branches] == [1, 2, 1, 1]
    assert (branches[0].outcome, branches[0].reason) == (
        Outcome.FAILED, Reason.ENVIRONMENT_ERROR,
    )  # fmt: skip
    assert branches[0].error == "`step` returned Return outside of a sub-agent"


@pytest.mark.parametrize(("turn", "shares"), [(1, ["one"]), (-1, ["one", "two"]), (0, [])])
async def test_a_retry_goes_on_from_before_a_turn(turn: int, shares: list[str]) -> None:
    said = [{"text": text} for text in ("one", "two", "three", "again")]
    (first, again), _ = await played([GO_ON, GO_ON, Retry(turn, [user("Not so.")])], said)
    assert [each.action for each in first.turns] == ["one", "two", "three"]
    assert [each.action for each in again.turns] == ["again"]
    roles = [text for _, role, text in texts(again) if role == Role.ASSISTANT]
    assert roles == [*shares, "again"]
    kept = first.turns[len(shares)].start
    assert again.shared_tokens >= kept
    assert again.token_ids[:kept] == first.token_ids[:kept]


async def test_a_call_that_cannot_be_made_is_answered_after_a_sub_agent_returns() -> None:
    calls = {"calls": [["add", {"a": 1}], ["add", {"a": 1, "b": 2}]]}
    done = Return([user("done")])
    branches, script = await played([SubAgent("a"), done], [calls, {"text": "x"}])
    last = recorded_turns(branches[0])[-1].observation
    assert [(each.role, each.text[:5]) for each in messages_of(last)] == [
        ("tool", "error"), ("user", "done"),
    ]  # fmt: skip
    assert [len(action.tool_calls) for action in script.actions] == [1, 0, 0]


@pytest.mark.parametrize("step", [Retry(7, "no"), SubAgent("x", (ADD,)), Return("no")])
async def test_what_cannot_be_is_an_outcome(step: StepObservation) -> None:
    branches, _ = await played([step], tools=None)
    assert (branches[0].reason, len(branches)) == (Reason.ENVIRONMENT_ERROR, 1)
    assert branches[0].error is not None
    assert "\n" not in branches[0].error


async def test_an_environment_of_text_cannot_branch() -> None:
    branches, _ = await played([SubAgent("x")], first="task?", tools=None)
    assert branches[0].error is not None
    assert "set converses = True" in branches[0].error


async def test_a_loop_of_branches_ends() -> None:
    branches, _ = await played([Retry(0, "again")] * 9, max_branches=4)
    assert len(branches) == 4
    assert {(each.outcome, each.reason) for each in branches} == {
        (Outcome.TRUNCATED, Reason.BRANCH_LIMIT)
    }


async def test_without_a_context_policy_an_overflow_ends_the_attempt() -> None:
    branches, _ = await played([GO_ON] * 20, context_tokens=700)
    assert (len(branches), branches[0].reason) == (1, Reason.CONTEXT_OVERFLOW)


@pytest.mark.parametrize("tools", [(ADD,), None], ids=["tools", "text"])
async def test_cut_keeps_the_first_messages_and_the_last_turns(tools: Any) -> None:
    first = FIRST if tools else "task?"
    shown = GO_ON if tools else "Go on."
    branches, script = await played(
        [shown] * 20, first=first, tools=tools, context_tokens=900, context="cut"
    )
    assert branches[0].outcome is Outcome.COMPLETED
    assert len(script.actions) == 21
    assert len(branches) > 2
    for before, after in pairwise(branches):
        assert texts(after)[0][2] == texts(before)[0][2]
        assert after.shared_tokens >= before.turns[0].start
        assert len(after.token_ids) < 900
    assert all(isinstance(action, Action if tools else str) for action in script.actions)


async def test_answers_of_tools_stay_with_their_calls() -> None:
    call = {"calls": [["add", {"a": 1, "b": 2}]]}
    branches, _ = await played(["answers"] * 12, [call], context_tokens=1_500, context="cut")
    assert len(branches) > 1
    for branch in branches:
        calls: list[str] = []
        for form in json.loads(branch.messages or ""):
            calls += [each["id"] for each in form.get("tool_calls", ())]
            if form["role"] == "tool":
                assert form["tool_call_id"] in calls


async def test_the_policy_summarizes_and_its_summary_is_trained() -> None:
    said = [*({"text": f"t{n}"} for n in range(4)), {"text": "SUM"}, {"text": "rest"}]
    branches, script = await played(
        [GO_ON] * 6, said, context_tokens=1_000, context="summarize(at=0.35)"
    )
    summaries = [turn for each in branches for turn in each.turns if turn.action == "SUM"]
    assert len(summaries) == 1
    assert "Summarize what was" in summaries[0].observation
    assert "SUM" not in [action.text for action in script.actions], "it is no action of the task"
    opened = json.loads(branches[1].messages or "")
    assert opened[1]["content"].endswith("Summary of the earlier turns:\nSUM")
    assert opened[0]["content"] == "Be brief."
    assert branches[0].outcome is Outcome.COMPLETED


async def test_notes_stay_when_turns_are_cut() -> None:
    write = {"calls": [["write_note", {"text": "key is 7"}]]}
    read = {"calls": [["read_notes", {}]]}
    both = {"calls": [["read_notes", {}], ["add", {"a": 1, "b": 2}]]}
    steps = [*[GO_ON] * 4, *["answers"] * 4]
    said: list[Said] = [write, *({"text": "go"},) * 4, read, both, {"text": "end"}]
    branches, script = await played(steps, said, context_tokens=1_200, context="notes")
    told = [form for each in branches for form in json.loads(each.messages or "")]
    results = [form["content"] for form in told if form["role"] == "tool"]
    assert "written as note 1" in results
    assert "1. key is 7" in results
    assert "found" in results
    assert any("You have written 1 note;" in form["content"] for form in told)
    named = [call.name for action in script.actions for call in action.tool_calls]
    assert named == ["add"], "the environment gets its own calls only"
    assert {tool["function"]["name"] for tool in json.loads(branches[0].tools or "")} == {
        "add", "write_note", "read_notes",
    }  # fmt: skip


async def test_notes_need_an_environment_with_tools() -> None:
    branches, _ = await played([], first="task?", tools=None, context="notes")
    assert branches[0].reason is Reason.ENVIRONMENT_ERROR
    assert "the environment takes text" in (branches[0].error or "")


async def test_history_that_the_template_changes_is_a_branch_of_its_own() -> None:
    said = [{"text": "a", "thinking": "hm"}, {"text": "b", "thinking": "hm"}, {"text": "c"}]
    codec = NumberedCodec(branches_history=True)
    branches, _ = await played([GO_ON] * 2, said, codec=codec)
    assert [[turn.action for turn in each.turns] for each in branches] == [["a"], ["b"], ["c"]]
    shown = "".join(map(chr, branches[2].token_ids))
    assert "hm" not in shown
    assert [turn for turn, _, _ in texts(branches[2])] == [0, 0, 0, 1, 1, 2, 2]
    kept, _ = await played([GO_ON] * 2, said)
    assert len(kept) == 1


CALL = {"calls": [["add", {"a": 1, "b": 2}], ["add", {}], ["write_note", {"text": "n"}]]}
STEPS = st.recursive(
    st.sampled_from(["answers", "Go on. " * 4, Retry(-1, "other"), Retry(0, "new")])
    | st.builds(SubAgent, st.sampled_from(["sub", "long " * 30])),
    lambda inner: st.builds(Return, inner.filter(lambda each: each != "answers")),
    max_leaves=3,
)
SAID = st.sampled_from(["{{", {"text": "a", "thinking": "h"}, CALL, {"text": "b" * 70}])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(STEPS, max_size=12),
    st.lists(SAID, min_size=1, max_size=8),
    st.sampled_from([None, "cut", "cut(at=0.3, keep=0.1)", "summarize(at=0.5)", "notes"]),
    st.integers(300, 2_000),
    st.booleans(),
)
def test_every_sampled_token_is_an_action_of_one_branch(
    steps: list[Any], said: list[Any], context: str | None, tokens: int, rendered: bool
) -> None:
    codec = NumberedCodec(branches_history=rendered)
    limits: dict[str, Any] = {"context": context, "context_tokens": tokens, "max_branches": 6}
    asyncio.run(played(steps, said, codec=codec, **limits))
