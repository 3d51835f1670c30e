"""Problems of mathematics with a Python tool."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.envs import MathWithPython
from rollart_flow.envs.math_problems import generated_problem
from rollart_flow.envs.math_python import MathWithPythonEnvironment, stated_number
from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.box import Box
from rollart_flow.sandbox.boxes import Boxes
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Action, Split, ToolCall
from tests.envs.families import check_solutions, check_split

boxed = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())
TASK = json.dumps({"question": "What is 6 * 7?", "answer": "42"})


def python(code: str) -> Action:
    return Action("", tool_calls=(ToolCall("1", "python", {"code": code}),))


def shown(environment: MathWithPythonEnvironment, code: str) -> str:
    """Return what the tool answers to a program."""
    observation: Any = environment.step(python(code))[0]
    return str(observation[0].text)


@pytest.fixture
def environment() -> Iterator[MathWithPythonEnvironment]:
    made = MathWithPython(calls=3, code_timeout_s=1.0, output_characters=100).make()
    made.reset(0, TASK)
    yield made
    made.close()


@boxed
def test_programs_run_in_one_box_and_the_answer_ends_the_attempt(
    environment: MathWithPythonEnvironment,
) -> None:
    assert [each.name for each in environment.tools] == ["python"]
    assert shown(environment, "open('x', 'w').write('6'); print(6 * 7)") == "42"
    assert shown(environment, "print(open('x').read())") == "6"
    _, reward, terminated, _, info = environment.step(Action("So it is \\boxed{42}."))
    assert (reward, terminated) == (1.0, True)
    assert info == {"success": True, "python_calls": 2}


@boxed
def test_output_time_and_calls_are_bounded(environment: MathWithPythonEnvironment) -> None:
    long = shown(environment, "print('a' * 5000)")
    assert len(long) < 150
    assert "4900 characters" in long
    assert "killed by the limit of time" in shown(environment, "while True: pass")
    assert "ZeroDivisionError" in shown(environment, "1 / 0")
    assert shown(environment, "print(1)") == "No calls are left; answer now."


@boxed
def test_a_program_sees_neither_the_answer_nor_this_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("42")
    environment = MathWithPython().make()
    environment.reset(0, TASK)
    looked = "import os\nprint(os.path.exists('{}'), sorted(os.listdir('.')))"
    assert shown(environment, looked.format(tmp_path / "secret")) == "False []"
    assert shown(environment, "pass") == "(exit code 0, nothing printed)"
    environment.reset(0, TASK)
    environment.close()
    environment.close()


class NoBoxes(Boxes):
    """Boxes that cannot be made."""

    def open(
        self, spec: SandboxSpec | None = None, *, snapshot: SandboxSnapshot | None = None
    ) -> Box:
        raise SandboxError("the sandbox could not be started")


def test_a_box_that_fails_fails_the_attempt_and_is_no_answer() -> None:
    environment = MathWithPython().make()
    environment.boxes = NoBoxes()
    environment.reset(0, TASK)
    with pytest.raises(SandboxError, match="could not be started"):
        environment.step(python("print(1)"))
    environment.reset(0, TASK)
    assert environment.step(Action("42"))[1] == 1.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("\\boxed{42.0}", 1.0),
        ("first 17, then 42", 1.0),
        ("The answer is 84/2", 1.0),
        ("42 or rather 43", 0.0),
        ("", 0.0),
        ("__import__('os')", 0.0),
    ],
)
def test_the_last_number_or_the_boxed_answer_counts(text: str, reward: float) -> None:
    environment = MathWithPython().make()
    environment.reset(0, TASK)
    assert environment.step(Action(text))[1] == reward


def test_a_stated_number_is_boxed_or_the_last() -> None:
    assert stated_number("1,234 and 5") == "5"
    assert stated_number("about 1,234.") == "1,234"
    assert stated_number("\\boxed{x+1} of 3") == "x+1"
    assert stated_number("none") == "none"


@pytest.mark.parametrize("problems", ["story", "expression"])
def test_problems_are_made_from_numbers(problems: str) -> None:
    domain = MathWithPython(problems, train_tasks=60, evaluation_tasks=8, held_out_tasks=8)
    check_split(domain)
    for task in [*islice(domain.tasks(Split.TRAIN, 0), 20), *domain.held_out(0)]:
        check_solutions(domain, task)


def test_answers_of_expressions_are_those_of_python() -> None:
    for number in range(200):
        problem = generated_problem("expression", number)
        text = problem.question.removeprefix("What is ").removesuffix("?")
        assert eval(text) == int(problem.answer)
        assert float(generated_problem("story", number).answer).is_integer()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_problems_come_from_a_table(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"questions.{suffix}"
    rows = pl.DataFrame(
        {"asked": [f"What is {n} + 1?" for n in range(90)], "told": list(range(1, 91))}
    )
    rows.write_parquet(path) if suffix == "parquet" else rows.write_ndjson(path)
    domain = MathWithPython(str(path), question="asked", answer="told")
    trained, held_out = domain.counts()
    assert (trained + held_out, 3 < held_out < 20) == (90, True)
    check_solutions(domain, domain.task(3))
    measured = {task.payload for task in domain.tasks(Split.EVALUATION, 0)}
    assert len(measured) == 64
    assert not measured & {task.payload for task in domain.held_out(0)}
    with pytest.raises(SettingsError, match="cannot be read"):
        MathWithPython(str(path), question="nothing").counts()


def test_problems_of_reasoning_gym_are_asked() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning")
    domain = MathWithPython("reasoning_gym/gsm_symbolic")
    check_solutions(domain, domain.task(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problems": "nothing"}, "take one of expression, story, reasoning_gym/NAME"),
        ({"calls": 6}, "max_turns=6: expected a whole number of at least 7"),
        ({"call_cost": -1.0}, "call_cost"),
        ({"code_timeout_s": 0.0}, "code_timeout_s"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MathWithPython(**settings)
