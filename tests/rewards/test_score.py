"""Scoring one trajectory: good rewards, and every way in which a reward function may fail."""

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rollart_flow.rewards.base import RewardFunction, environment_reward
from rollart_flow.rewards.composition import Part, compose
from rollart_flow.rewards.majority import majority
from rollart_flow.rewards.score import Scorer, score
from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory
from rollart_flow.types.verdicts import Verdict, VerdictKind
from rollart_flow.verdict_rows import verdicts_table
from tests.builders import trajectory, turn
from tests.rewards import functions

TRAJECTORY = trajectory(reward=None, turns=(turn(reward=-0.1), turn(reward=1.0)))


def scored(function: RewardFunction, timeout_s: float = 60.0) -> Trajectory:
    return asyncio.run(score(TRAJECTORY, function, timeout_s))


def test_the_default_is_the_sum_of_what_the_environment_gave() -> None:
    result = asyncio.run(score(TRAJECTORY))
    assert result.reward == pytest.approx(0.9)
    assert result.scored_at is not None
    assert replace(result, reward=None, scored_at=None) == TRAJECTORY


def test_a_score_by_a_clock_that_is_behind_is_of_the_end_of_the_attempt() -> None:
    ahead = replace(TRAJECTORY, finished_at=datetime(3000, 1, 1, tzinfo=UTC))
    assert asyncio.run(score(ahead)).scored_at == ahead.finished_at


def test_a_plain_function_runs_in_another_process_and_an_async_one_in_the_loop() -> None:
    assert scored(functions.turns).reward == 2.0
    assert scored(functions.pid).reward != os.getpid()
    assert scored(functions.in_the_loop).reward == os.getpid()


def test_parts_are_kept_and_numpy_is_converted() -> None:
    result = scored(functions.with_parts)
    assert (result.reward, result.reward_parts) == (0.5, {"right": 1.0, "short": -0.5})


def test_verdicts_come_from_another_process_and_through_a_composition() -> None:
    reason = Verdict(key="style", kind=VerdictKind.REWARD, message="a line is too long")
    test = Verdict(key="test_a", passed=True)
    result = scored(functions.with_verdicts)
    assert (result.reward, result.reward_parts) == (0.5, {"style": 0.25})
    assert result.reward_verdicts == (reason, test)
    composed = scored(compose(functions.turns, Part("code", functions.with_verdicts)))
    assert composed.reward_verdicts == (
        replace(reason, key="code.style"), replace(test, key="code.test_a"),
    )  # fmt: skip
    assert scored(majority(functions.with_verdicts, k=1)).reward_verdicts is None
    rows = verdicts_table([composed])
    assert rows is not None
    found = {row["key"]: row for row in rows.to_pylist()}
    assert found["code.style"]["value"] == 0.25
    assert found["code.style"]["message"] == "a line is too long"
    assert found["process"]["kind"] == "reward"
    assert {row["source"] for row in found.values()} == {"reward"}


def test_one_part_of_a_reward_has_a_row_only_if_something_was_said_of_it() -> None:
    one = replace(TRAJECTORY, reward_parts={"style": 0.25})
    assert verdicts_table([one]) is None
    said = Verdict(key="style", kind=VerdictKind.REWARD, message="a line is too long")
    test = Verdict(key="test_a", passed=True)
    for verdicts, expected in (((said,), [("style", 0.25)]), ((test,), [("test_a", None)])):
        rows = verdicts_table([replace(one, reward_verdicts=verdicts)])
        assert rows is not None
        assert [(row["key"], row["value"]) for row in rows.to_pylist()] == expected
    both = verdicts_table([replace(one, reward_parts={"style": 0.25, "right": 1.0})])
    assert both is not None
    assert both["key"].to_pylist() == ["style", "right"]


def test_a_closure_is_scored_too() -> None:
    bonus = 0.5
    assert scored(lambda trajectory: len(trajectory.turns) + bonus).reward == 2.5


@pytest.mark.parametrize("outcome", Outcome)
def test_only_completed_and_truncated_trajectories_are_scored(outcome: Outcome) -> None:
    trajectory = replace(TRAJECTORY, outcome=outcome)
    result = asyncio.run(score(trajectory, environment_reward))
    assert (result.reward is not None) == (outcome in TRAINABLE)
    if outcome not in TRAINABLE:
        assert result is trajectory


@pytest.mark.parametrize(
    ("function", "outcome", "reason", "message"),
    [
        (functions.raises, "failed", "reward_error", "raises: KeyError: 'gold answer'"),
        (functions.raises_in_the_loop, "failed", "reward_error", "the judge is not at home"),
        (functions.exits, "failed", "reward_error", "ended with exit status 4"),
        (functions.with_infinite_verdict, "failed", "reward_error", "seconds: inf given"),
        (functions.text, "failed", "reward_error", "returned str as reward; it must return"),
        (functions.nothing, "failed", "reward_error", "returned None as reward"),
        (functions.list_of_parts, "failed", "reward_error", "returned list as parts"),
        (functions.forgotten_await, "failed", "reward_error", "write it as async def"),
        (functions.nan, "failed", "reward_not_finite", "nan: returned nan as reward"),
        (functions.infinite_part, "failed", "reward_not_finite", "returned -inf as length"),
        (functions.infinite_in_the_loop, "failed", "reward_not_finite", "returned inf"),
        (functions.hangs, "timed_out", "reward_timeout", "hangs: no reward within 1 s"),
        (functions.hangs_in_the_loop, "timed_out", "reward_timeout", "no reward within 1 s"),
    ],
)
def test_what_fails_is_an_outcome_with_a_reason(
    function: RewardFunction, outcome: str, reason: str, message: str
) -> None:
    result = scored(function, timeout_s=1.0 if reason == "reward_timeout" else 60.0)
    assert (result.outcome, result.reason) == (Outcome(outcome), Reason(reason))
    assert result.error is not None
    assert message in result.error
    assert (result.reward, result.reward_parts, result.scored_at) == (None, None, None)


def test_processes_are_used_again_and_one_that_hangs_is_replaced() -> None:
    def sometimes(trajectory: Trajectory) -> float:
        while trajectory.attempt == 1:
            pass
        return float(os.getpid())

    async def test() -> None:
        scorer = Scorer(sometimes)
        first = await scorer.score(TRAJECTORY, 60.0)
        again = await scorer.score(TRAJECTORY, 60.0)
        late = await scorer.score(replace(TRAJECTORY, attempt=1), 0.5)
        after = await scorer.score(TRAJECTORY, 60.0)
        await scorer.close()
        assert first.reward == again.reward
        assert late.reason is Reason.REWARD_TIMEOUT
        assert after.reward not in (None, first.reward)

    asyncio.run(test())


def test_many_at_a_time_share_nothing() -> None:
    async def test() -> None:
        scorer = Scorer(functions.pid)
        results = await asyncio.gather(*(scorer.score(TRAJECTORY, 60.0) for _ in range(3)))
        await scorer.close()
        assert len({result.reward for result in results}) == 3

    asyncio.run(test())


def test_cancelling_a_score_is_no_outcome() -> None:
    async def test() -> None:
        scorer = Scorer(functions.hangs)
        scoring = asyncio.ensure_future(scorer.score(TRAJECTORY, 60.0))
        await asyncio.sleep(0)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        await scorer.close()

    asyncio.run(test())
