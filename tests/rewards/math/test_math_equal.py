"""Mathematical equality: pairs that are equal, pairs that are not, and answers that mean harm."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards import math_equal
from rollart_flow.rewards.math.equal import are_equal
from rollart_flow.rewards.math.proof import within
from rollart_flow.rewards.math.rule import final_answer
from rollart_flow.rewards.score import score
from tests.builders import answered
from tests.rewards.math.pairs import DIFFERENT, EQUAL, HOSTILE


def test_there_are_enough_pairs() -> None:
    assert len({*EQUAL, *DIFFERENT}) >= 250


@pytest.mark.parametrize(("given", "expected"), EQUAL)
def test_equal_answers_are_found_equal_both_ways(given: str, expected: str) -> None:
    assert are_equal(given, expected, limit_s=20.0)
    assert are_equal(expected, given, limit_s=20.0)


@pytest.mark.parametrize(("given", "expected"), DIFFERENT)
def test_different_answers_are_found_different_both_ways(given: str, expected: str) -> None:
    assert not are_equal(given, expected)
    assert not are_equal(expected, given)


@pytest.mark.parametrize("expected", ["5", "x+1", r"\sqrt{2}", "(1,2)", "x>3"])
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_answers_are_wrong_and_take_little_time(number: int, expected: str) -> None:
    began = time.process_time()
    assert not are_equal(HOSTILE[number], expected)
    assert time.process_time() - began < 5.0
    assert not os.path.exists("/tmp/hacked")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_answer_compared_with_itself_ends(text: str) -> None:
    began = time.process_time()
    are_equal(f"{text}+1-1", f"1-1+{text}", limit_s=1.0)
    assert time.process_time() - began < 10.0


def test_a_proof_that_does_not_end_is_given_up_in_any_thread() -> None:
    def endless() -> bool:
        while True:
            pass

    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(within(0.2, endless)))
    thread.start()
    assert within(0.2, endless) is False
    thread.join()
    assert found == [False]
    assert within(5.0, lambda: True) is True


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("work\n#### 7", " 7".strip()),
        ("First 3.\nThe answer is 12.", "12."),
        ("**Answer:** 4\nFinal answer: 5", "5"),
        ("x+1", "x+1"),
    ],
)
def test_the_answer_is_what_the_text_says_last(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_the_expected_answer_is_given_or_stands_in_the_task() -> None:
    assert math_equal("1/2")(answered("The answer is 0.5.")) == 1.0
    assert math_equal(0.5)(answered("1/2")) == 1.0
    assert math_equal()(answered("#### 1,000", answer=1000)) == 1.0
    assert math_equal(key="gold")(answered("2", gold=["1", "2"])) == 1.0
    assert math_equal(key="gold")(answered("3", gold=["1", "2"])) == 0.0
    assert math_equal()(answered(r"\boxed{x+1}", answer=r"thus \boxed{1+x}")) == 1.0
    assert math_equal(inside="a")(answered("<a>4</a> 5", answer="4")) == 1.0
    assert math_equal()(answered(answer="4")) == 0.0


@pytest.mark.parametrize("value", [None, "", True, [], {"a": 1}, ["1", None]])
def test_a_task_without_an_expression_is_an_error(value: object) -> None:
    with pytest.raises(RewardFailedError, match="'answer' of task 'math/1' is"):
        math_equal()(answered("4", answer=value))


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"limit_s": 0.0}, {"inside": "<a>"}, {"expected": " "}):
        with pytest.raises(SettingsError, match="math_equal"):
            math_equal(**wrong)


def test_it_is_scored_in_a_process_of_its_own() -> None:
    result = asyncio.run(score(answered(r"\boxed{\sqrt{8}}", answer=r"2\sqrt2"), math_equal()))
    assert (result.reward, result.error) == (1.0, None)


def test_numbers_are_compared_without_sympy() -> None:
    program = (
        "import sys\nfrom rollart_flow.rewards.math.equal import are_equal\n"
        "assert are_equal('1/2', '0.5') and not are_equal('x', 'y')\n"
        "print('sympy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
