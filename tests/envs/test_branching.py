"""Environments that make their attempts branch, in this process and in one of their own."""

import asyncio
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.rollout.env_checks import checked_step
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.envs import ToolEnvironment, tool
from rollart_flow.envs.adapter import InlineEnvironment, open_environment
from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import (
    Action,
    AttemptLimits,
    Observation,
    Outcome,
    Retry,
    Return,
    SubAgent,
)
from rollart_flow.types.branching import StepObservation, step_observation_json
from rollart_flow.types.messages import system, user
from tests.control.rollout.test_branches import Engine, NumberedCodec, check
from tests.control.rollout.test_dialogue import ADD, ASSIGNMENT
from tests.dst.environments import wall
from tests.dst.log import EventLog

BRANCHINGS: tuple[StepObservation, ...] = (
    SubAgent((system("Sub."), user("help?")), (ADD,)),
    SubAgent("a text"),
    Return("done"),
    Return(Return(SubAgent((user("next"),)))),
    Retry(-1, (user("again"),)),
)


class BranchingEnvironment(Environment):
    converses = True

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self.left = list(BRANCHINGS)
        return "go", {}

    def step(self, action: Action) -> tuple[StepObservation, float, bool, bool, Info]:
        return self.left.pop(0), 0.5, False, False, {}


@dataclass(frozen=True)
class Branches(Domain):
    name: ClassVar[str] = "branches"
    environment: ClassVar[type[Environment]] = BranchingEnvironment

    def tasks(self, split: Any, seed: int) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("isolated", [True, False], ids=["process", "thread"])
def test_what_makes_an_attempt_branch_crosses_the_process(isolated: bool) -> None:
    async def stepped() -> tuple[StepObservation, ...]:
        environment = open_environment(Branches(), isolated=isolated)
        await environment.reset(0, "{}")
        found = [(await environment.step(Action("x")))[0] for _ in BRANCHINGS]
        await environment.close()
        return tuple(found)

    assert asyncio.run(stepped()) == BRANCHINGS


@pytest.mark.parametrize("branching", BRANCHINGS, ids=repr)
def test_the_json_form_says_all(branching: StepObservation) -> None:
    form = step_observation_json(branching)
    assert checked_step((form, 0.0, False, False, {})).observation == branching


@pytest.mark.parametrize(
    ("branching", "said"),
    [
        (SubAgent(3), "step: SubAgent returned int as observation"),  # type: ignore[arg-type]
        (SubAgent("x", (7,)), "step: SubAgent: tools are no list"),  # type: ignore[arg-type]
        (Retry("1", "x"), "step: Retry has the turn '1'; it must be a whole"),  # type: ignore[arg-type]
        (Retry(1, []), "step: Retry returned list as observation"),
        (Return(None), "step: Return returned None as observation"),  # type: ignore[arg-type]
        ({"branch": "other"}, "step returned dict as observation"),
    ],
)
def test_an_error_says_in_one_line_what_is_wrong(branching: Any, said: str) -> None:
    with pytest.raises(EnvironmentFailedError) as error:
        checked_step((branching, 0.0, False, False, {}))
    assert said in error.value.message
    assert "\n" not in error.value.message


def test_values_within_each_other_have_an_end() -> None:
    deep: StepObservation = "x"
    for _ in range(100):
        deep = Return(deep)
    with pytest.raises(EnvironmentFailedError, match="over 32 `Return` in each other"):
        checked_step((deep, 0.0, False, False, {}))


class Team(ToolEnvironment):
    """Asks sub-agents, one of which has a tool that asks a further one."""

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        return [system("Lead."), user("go")], {}

    @tool
    def ask(self, question: str, times: int = 1) -> Generator[StepObservation, Action, str]:
        """Ask a colleague."""
        heard = []
        for number in range(times):
            action = yield SubAgent([system(f"Colleague {number}."), user(question)], self.tools)
            if action.text == "what":
                action = yield [user(f"I said: {question}")]
            if action.text == "fail":
                raise RuntimeError("no answer")
            heard.append(action.text)
        return " and ".join(heard)

    @tool
    def count(self, number: int) -> int:
        """Count on."""
        return number + 1

    @tool
    def odd(self) -> Generator[str, Action, str]:
        """Yield no sub-agent."""
        yield "hm"
        return "never"

    def answer(self, text: str) -> tuple[StepObservation, float, bool, bool, Info]:
        return "", float(text == "done"), True, False, {}


def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"calls": [[name, arguments] for name, arguments in calls]}


ASK = calling(("ask", {"question": "how?"}))


async def branched(*said: Any) -> list[list[tuple[str, str]]]:
    """The messages of each branch of an attempt, in which every sampled token is checked."""
    engine, codec = Engine([*said, {"text": "done"}]), NumberedCodec()
    team = InlineEnvironment(TeamDomain())
    bounds = AttemptLimits(max_turns=30, context_tokens=20_000)
    proxy = LLMProxy([engine], EventLog())
    branches = await EnvManager(ASSIGNMENT, lambda: team, codec, proxy, bounds, wall).run()
    check(branches, engine, codec)
    assert branches[0].outcome is Outcome.COMPLETED, branches[0].error
    forms = [json.loads(branch.messages or "") for branch in branches]
    return [[(each["role"], each["content"]) for each in branch] for branch in forms]


@dataclass(frozen=True)
class TeamDomain(Branches):
    environment: ClassVar[type[Environment]] = Team


def test_a_tool_runs_a_sub_agent_whose_tokens_are_trained_once() -> None:
    lead, sub = asyncio.run(branched(ASK, {"text": "what"}, {"text": "so"}))
    assert lead[2:] == [("assistant", ""), ("tool", "so"), ("assistant", "done")]
    assert sub[:3] == [("system", "Colleague 0."), ("user", "how?"), ("assistant", "what")]
    assert sub[3:] == [("user", "I said: how?"), ("assistant", "so")]


def test_calls_beside_it_keep_their_order_and_it_may_ask_twice() -> None:
    ask = ("ask", {"question": "how?", "times": 2})
    calls = calling(("count", {"number": 1}), ask, ("count", {"number": 4}))
    lead, *subs = asyncio.run(branched(calls, {"text": "a"}, {"text": "b"}))
    told = [text for role, text in lead if role == "tool"]
    assert told == ["2", "a and b", "5"]
    assert [sub[0][1] for sub in subs] == ["Colleague 0.", "Colleague 1."]


def test_a_sub_agent_calls_tools_and_asks_a_further_one() -> None:
    count = calling(("count", {"number": 1}))
    lead, sub, inner = asyncio.run(branched(ASK, count, ASK, {"text": "deep"}, {"text": "up"}))
    assert [text for role, text in sub if role == "tool"] == ["2", "deep"]
    assert inner[-1] == ("assistant", "deep")
    assert ("tool", "up") in lead


def test_what_it_raises_is_its_answer_and_so_is_no_sub_agent() -> None:
    lead, _ = asyncio.run(branched(ASK, {"text": "fail"}))
    assert ("tool", "error: RuntimeError: no answer") in lead
    (lead,) = asyncio.run(branched(calling(("odd", {}))))
    assert "a tool that yields must yield a SubAgent first" in lead[-2][1]
