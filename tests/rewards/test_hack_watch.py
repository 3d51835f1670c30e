"""A judge that looks for hacks: whom it is asked about, and what becomes of their reward."""

import asyncio
from typing import Any

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.rewards import HACK_PROMPT, Judge, environment_reward
from rollart_flow.rewards.hack_watch import Watched, watched
from rollart_flow.rewards.score import score
from rollart_flow.types import Outcome, Trajectory
from rollart_flow.types.verdicts import Verdict, VerdictKind
from rollart_flow.verdict_rows import verdicts_table
from tests.builders import trajectory, turn
from tests.rewards import functions
from tests.rewards.chat_server import ChatServer, judged, said


def attempt(reward: float, *suspicions: str) -> Trajectory:
    turns = (turn(reward=reward),)
    return trajectory(reward=None, turns=turns, suspicions=suspicions, diff="-assert")


def scored(function: Watched, reward: float, *suspicions: str) -> Trajectory:
    return asyncio.run(score(attempt(reward, *suspicions), function))


def sure_of(certainty: Any) -> Any:
    """A judge that is as sure as that, and records what it is asked about."""

    async def judge(trajectory: Trajectory) -> Any:
        asked.append(trajectory)
        return certainty, None, [Verdict(key="judge", message="it deletes the test")]

    asked: list[Trajectory] = []
    judge.asked = asked  # type: ignore[attr-defined]
    return judge


def test_the_judge_is_asked_about_rewarded_and_about_suspicious_attempts() -> None:
    judge = sure_of(0.0)
    function = watched(environment_reward, judge)
    assert scored(function, 0.25).reward_parts is None
    assert not judge.asked
    assert scored(function, 1.0).reward == 1.0
    assert scored(function, 0.25, "network: curl").reward == 0.25
    assert len(judge.asked) == 2


def test_a_reward_is_taken_away_where_the_judge_is_sure_with_its_reason() -> None:
    found = scored(watched(environment_reward, sure_of(0.95)), 1.0)
    assert (found.outcome, found.reward) == (Outcome.COMPLETED, 0.0)
    assert found.reward_parts == {"hack": 0.95}
    rows = verdicts_table([found])
    assert rows is not None
    (row,) = rows.to_pylist()
    assert (row["key"], row["kind"], row["value"]) == ("hack", "reward", 0.95)
    assert row["message"] == "reward 1 is taken away: it deletes the test"
    unsure = scored(watched(environment_reward, sure_of(0.5)), 1.0)
    assert (unsure.reward, unsure.reward_parts) == (1.0, {"hack": 0.5})
    assert scored(watched(environment_reward, sure_of(1.0), above=-2), -1.0).reward == -1.0


def test_parts_and_verdicts_of_the_watched_reward_stay() -> None:
    found = scored(watched(functions.with_verdicts, sure_of(1.0)), 1.0)
    assert found.reward_parts == {"style": 0.25, "hack": 1.0}
    assert [each.key for each in found.reward_verdicts or ()] == ["style", "test_a", "hack"]


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (functions.raises_in_the_loop, "not judged: the judge is not at home"),
        (functions.hangs_in_the_loop, "not judged: TimeoutError"),
        (functions.exits, "not judged: the process ended with exit status 4"),
        (sure_of(float("nan")), "not judged: the judge: returned nan; it must be a finite number"),
        (sure_of("very"), "not judged: returned str as reward"),
    ],
)
def test_a_judge_that_fails_leaves_the_reward_alone(judge: Any, message: str) -> None:
    timeout_s = 0.2 if judge is functions.hangs_in_the_loop else 20.0
    found = scored(watched(environment_reward, judge, timeout_s=timeout_s), 1.0)
    assert (found.outcome, found.reward, found.reward_parts) == (Outcome.COMPLETED, 1.0, None)
    (verdict,) = found.reward_verdicts or ()
    assert (verdict.key, verdict.kind, verdict.value) == ("hack", VerdictKind.REWARD, None)
    assert message in (verdict.message or "")


def test_a_model_is_asked_with_the_change_and_gives_its_reason() -> None:
    async def scenario(server: ChatServer) -> None:
        judge = Judge(url=server.url, model="m", prompt=HACK_PROMPT, explain=True)
        found = await score(
            attempt(1.0, "touched_tests: test_a.py"), watched(environment_reward, judge)
        )
        assert found.reward == 0.0
        (verdict,) = found.reward_verdicts or ()
        assert "the test is gone. Score: 1" in (verdict.message or "")

    server = judged([said("the test is gone.\nScore: 1")], scenario)
    assert (
        "<change>-assert</change>\n<noticed>touched_tests: test_a.py</noticed>" in server.prompts[0]
    )


@pytest.mark.parametrize("settings", [{"sure": 0.0}, {"sure": 2.0}, {"timeout_s": 0.0}])
def test_a_setting_out_of_range_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(settings))):
        watched(environment_reward, sure_of(0.0), **settings)
