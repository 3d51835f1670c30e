"""Rules: what counts as the expected text, number or pattern, and what is an error."""

import asyncio
from collections.abc import Callable

import pytest

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.rules import exact, numeric, regex
from rollart_flow.rewards.score import score
from rollart_flow.types import Outcome, Reason
from tests.builders import answered


@pytest.mark.parametrize(
    ("rule", "action", "reward"),
    [
        (exact("Paris"), "  paris\n", 1.0),
        (exact("new york", "NYC"), "New\tYork", 1.0),
        (exact("new york", "NYC"), "nyc", 1.0),
        (exact("Paris"), "It is Paris", 0.0),
        (exact("Paris", case=True), "paris", 0.0),
        (exact("a b", space=True), "a  b", 0.0),
        (exact("ﬁne"), "fine", 1.0),
        (exact("e\u0301"), "\u00e9", 1.0),
        (exact("e\u0301", form=True), "\u00e9", 0.0),
        (exact("x_{1}", inside=r"\boxed"), r"so \boxed{0} or \boxed{x_{1}}.", 1.0),
        (exact("7", inside="answer"), "<answer>6</answer> no: <answer> 7 </answer>", 1.0),
        (exact("7", inside="answer"), "7", 0.0),
        (regex("(?i)yes"), "Well, YES", 1.0),
        (regex("yes", full=True), "yes!", 0.0),
        (regex("yes.*", full=True), "yes!", 1.0),
        (regex(r"^\d+$", inside="n"), "<n>12</n>", 1.0),
        (regex(r"\d", inside="n"), "12", 0.0),
        (numeric(7), "the answer is 7.", 1.0),
        (numeric(7), "first 7, then 8", 0.0),
        (numeric(7), "none", 0.0),
        (numeric(100, relative=0.01), "101", 1.0),
        (numeric(100, relative=0.01), "101.001", 0.0),
        (numeric(0, absolute=0.5, relative=0.1), "-0.5", 1.0),
        (numeric("3/4", inside=r"\boxed"), r"\boxed{\frac{3}{4}} = 2", 1.0),
        (numeric(0.1), "1/10", 1.0),
    ],
)
def test_a_right_answer_is_1_and_any_other_0(
    rule: RewardFunction, action: str, reward: float
) -> None:
    assert rule(answered("not this one", action)) == reward


@pytest.mark.parametrize(
    ("rule", "payload", "reward"),
    [
        (exact(), {"answer": 7}, 1.0),
        (exact(key="gold"), {"gold": ["six", "7"]}, 1.0),
        (exact(), {"answer": "8"}, 0.0),
        (numeric(), {"answer": "work\n#### 7.0"}, 1.0),
        (numeric(key="n"), {"n": 7.5}, 0.0),
        (regex(), {"pattern": "[67]"}, 1.0),
    ],
)
def test_what_is_expected_may_stand_in_the_task(
    rule: RewardFunction, payload: dict[str, object], reward: float
) -> None:
    assert rule(answered("7", **payload)) == reward


def test_a_trajectory_without_an_action_is_wrong() -> None:
    for rule in (exact(""), numeric(0), regex(".*")):
        assert rule(answered()) == 0.0


@pytest.mark.parametrize(
    ("rule", "payload", "message"),
    [
        (exact(), {"problem": "3+4="}, "task 'math/1' has no 'answer'; it has problem."),
        (regex(), {}, "has no 'pattern'; it has nothing."),
        (numeric(), {"answer": "seven"}, "'answer' of task 'math/1' is 'seven'; it must be"),
        (numeric(), {"answer": float("nan")}, "it must be a finite number"),
        (numeric(), {"answer": True}, "it must be a finite number"),
    ],
)
def test_a_task_that_cannot_be_judged_is_an_error(
    rule: RewardFunction, payload: dict[str, object], message: str
) -> None:
    with pytest.raises(RewardFailedError) as raised:
        rule(answered("7", **payload))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regex("("), "'(' is no pattern"),
        (lambda: exact("7", inside="<answer>"), "the bare name of a tag"),
        (lambda: numeric("seven"), "expected is 'seven', which holds no number"),
        (lambda: numeric(float("inf")), "holds no number"),
        (lambda: numeric(1, relative=-0.1), "relative is -0.1"),
        (lambda: numeric(1, absolute=float("nan")), "absolute is nan"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        make()
    assert message in str(raised.value)


def test_a_rule_is_scored_in_a_process_of_its_own() -> None:
    result = asyncio.run(score(answered("7", answer="7"), exact()))
    assert (result.reward, result.error) == (1.0, None)


def test_a_pattern_that_backtracks_without_end_stops_at_the_timeout() -> None:
    result = asyncio.run(score(answered("a" * 64), regex(r"(a+)+$b"), timeout_s=1.0))
    assert (result.outcome, result.reason) == (Outcome.TIMED_OUT, Reason.REWARD_TIMEOUT)
    assert result.error == "reward function Regex: no reward within 1 s"


def test_a_task_that_cannot_be_judged_fails_its_trajectory_and_says_why() -> None:
    result = asyncio.run(score(answered("7", problem="3+4="), numeric()))
    assert result.reason is Reason.REWARD_ERROR
    assert "has no 'answer'; it has problem" in (result.error or "")
