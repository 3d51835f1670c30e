"""Environments that make their attempts branch, in this process and in one of their own."""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from rollart_flow.control.rollout.env_checks import checked_step
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Action, Retry, Return, SubAgent
from rollart_flow.types.branching import StepObservation, step_observation_json
from rollart_flow.types.messages import system, user
from tests.control.rollout.test_dialogue import ADD

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
