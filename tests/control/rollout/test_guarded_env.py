"""GuardedEnvironment checks all answers but those of the two types that only the checks make."""

import ast
import math
from pathlib import Path

import pytest

import rollart_flow
from rollart_flow.control.rollout.env_checks import StepAnswer, checked_step
from rollart_flow.control.rollout.guarded_env import GuardedEnvironment
from rollart_flow.control.rollout.interrupts import AttemptEndedError, Interruptible
from rollart_flow.types import Outcome

PACKAGE = Path(rollart_flow.__file__).parent
Answer = tuple[str, float, bool, bool, dict[str, object]]
WRONG: Answer = ("next", math.nan, False, False, {})


class Subclass(StepAnswer):
    """An answer of a type that anybody may make."""


class Adapter:
    """An adapter that gives one answer to each step, as it is."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def reset(self, seed: int, task: str) -> tuple[str, dict[str, object]]:
        return "go", {}

    async def step(self, action: str) -> Answer:
        return self._answer

    async def close(self) -> None:
        return None


async def stepped(answer: Answer) -> tuple[object, ...]:
    guarded = GuardedEnvironment(lambda: Adapter(answer), "add", 1.0, Interruptible(print))
    await guarded.reset(0, "1+1")
    try:
        return await guarded.step("2")
    finally:
        await guarded.close()


@pytest.mark.parametrize("answer", [WRONG, Subclass(*WRONG)], ids=["tuple", "subclass"])
async def test_an_answer_that_an_adapter_did_not_check_is_refused(answer: Answer) -> None:
    with pytest.raises(AttemptEndedError) as refused:
        await stepped(answer)
    assert refused.value.ending.outcome is Outcome.FAILED
    assert "step returned the reward nan" in str(refused.value.ending.error)


async def test_a_checked_answer_is_the_one_that_is_returned() -> None:
    checked = checked_step(("next", 1, False, False, {}))
    assert await stepped(checked) is checked  # type: ignore[arg-type]


def test_only_the_checks_and_the_dialogue_make_answers_that_count_as_checked() -> None:
    makers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("ResetAnswer", "StepAnswer")
    }
    assert makers == {"control/rollout/env_checks.py", "control/rollout/dialogue.py"}
