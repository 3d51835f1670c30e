"""Arithmetic: its answers, and the split of its problems."""

from itertools import islice
from random import Random

import pytest

from rollart_flow.envs import Arithmetic
from rollart_flow.envs.arithmetic import parse_answer, solve
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Split, Task


def problem(text: str) -> str:
    return f'{{"problem": "{text}"}}'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3+4=", 7),
        ("12-34=", -22),
        ("99*99=", 9801),
        ("0+0=", 0),
        ("3<7=", 1),
        ("7<7=", 0),
        ("47%2=", 1),
    ],
)
def test_problems_are_solved(text: str, answer: int) -> None:
    assert solve(text) == answer
    environment = Arithmetic(digits=2).make()
    assert environment.reset(0, problem(text)) == (text, {})
    assert environment.step(str(answer)) == ("", 1.0, True, False, {"success": True})
    assert environment.step(str(answer + 1)) == ("", 0.0, True, False, {"success": False})


def test_what_is_no_problem_is_refused() -> None:
    for text in ("3+4", "3^4=", "", "__import__('os')="):
        with pytest.raises(EnvironmentFailedError, match="is no problem"):
            solve(text)
    with pytest.raises(EnvironmentFailedError, match="divides by 0"):
        solve("3%0=")
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        Arithmetic().make().step("7")


@pytest.mark.parametrize(
    ("text", "answer"), [("7", 7), ("07", 7), ("3+4 is 7.", 7), ("-5", -5), ("", None), ("x", None)]
)
def test_the_last_number_counts(text: str, answer: int | None) -> None:
    assert parse_answer(text) == answer


def test_rewards_of_wrong_answers_are_settings() -> None:
    environment = Arithmetic(format_penalty=0.25, near_reward=0.5).make()
    environment.reset(0, problem("3+4="))
    rewards = [environment.step(answer)[1] for answer in ("7", "6", "8", "11", "seven")]
    assert rewards == [1.0, 0.25, 0.25, 0.1, -0.25]


def test_trained_and_held_out_problems_are_all_problems_and_disjoint() -> None:
    for domain, count in ((Arithmetic(ops=("+", "*")), 200), (Arithmetic(digits=2), 10_000)):
        trained = {task.task_id for task in domain.tasks(Split.EVALUATION, 0)}
        held_out = {task.task_id for task in domain.held_out(0)}
        assert not trained & held_out
        assert len(trained) + len(held_out) == count
        assert 0.04 < len(held_out) / count < 0.2


def test_the_split_does_not_depend_on_the_seed() -> None:
    assert list(Arithmetic().held_out(0)) == list(Arithmetic().held_out(1))
    assert list(Arithmetic(held_out_fraction=0.0).held_out(0)) == []


def test_training_goes_through_all_problems_in_another_order_each_time() -> None:
    domain = Arithmetic()
    problems = list(domain.tasks(Split.EVALUATION, 0))
    tasks = domain.tasks(Split.TRAIN, 4)
    first, second = list(islice(tasks, len(problems))), list(islice(tasks, len(problems)))
    assert first != second
    by_name = sorted(problems, key=lambda task: task.task_id)
    assert sorted(first, key=lambda task: task.task_id) == by_name
    assert sorted(second, key=lambda task: task.task_id) == by_name
    assert list(islice(domain.tasks(Split.TRAIN, 4), len(problems))) == first
    assert list(islice(domain.tasks(Split.TRAIN, 5), len(problems))) != first


def test_instructions_precede_the_problem() -> None:
    environment = Arithmetic(instructions="Answer with a number: ").make()
    assert environment.reset(0, problem("1+1="))[0] == "Answer with a number: 1+1="


def test_example_actions_are_answers_of_some_problem() -> None:
    task, random = Task("a", "arithmetic", problem("3-4=")), Random(0)
    examples = {int(Arithmetic(ops=("-",)).example_action(task, random)) for _ in range(2000)}
    assert examples == set(range(-9, 10))


def test_the_right_operand_can_be_chosen() -> None:
    domain = Arithmetic(digits=2, ops=("%",), right=(2, 5))
    problems = [*domain.tasks(Split.EVALUATION, 0), *domain.held_out(0)]
    assert len(problems) == 200
    assert {task.task_id.rpartition("%")[2] for task in problems} == {"2", "5"}
    answers = {domain.example_action(problems[0], Random(seed)) for seed in range(50)}
    assert answers == {"0", "1", "2", "3", "4"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ops": ("/",)}, r"take each of \+, -, \*, %, < at most once"),
        ({"ops": ()}, "at least one"),
        ({"ops": ("+", "+")}, "at most once"),
        ({"digits": 3}, "it must be 1 or 2"),
        ({"right": (2, -1)}, "whole numbers from 0"),
        ({"ops": ("%",)}, "nothing is divided by 0"),
        ({"held_out_fraction": 1.0}, "at least 0 and under 1"),
        ({"held_out_fraction": 0.9999}, "leaves no problem to train on"),
        ({"near_reward": 1.0}, "under 1"),
        ({"format_penalty": -0.1}, "at least 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Arithmetic(**settings)  # type: ignore[arg-type]
