"""Redundant attempts: a group goes on without the slowest ones, and each leaves its trajectory."""

import asyncio
import math

from rollart_flow.control.rollout.attempt_manager import AttemptManager
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.control.rollout.redundancy import first_of
from rollart_flow.types import AttemptLimits, Outcome, Reason, Trajectory
from tests.control.rollout.test_env_manager import (
    DONE,
    HANG,
    STAY,
    Answer,
    ScriptedEnvironment,
    manager,
)

UNLIMITED = AttemptLimits(
    max_turns=10, context_tokens=100, step_timeout_s=math.inf, trajectory_timeout_s=math.inf
)


async def score(one: AttemptManager) -> tuple[Trajectory, ...]:
    return await one.run()


async def first(managers: list[EnvManager], needed: int) -> list[Trajectory]:
    """The only branch of each attempt."""
    return [trajectory for (trajectory,) in await first_of(managers, needed, score)]


def group(*scripts: tuple[Answer, ...]) -> tuple[list[EnvManager], list[ScriptedEnvironment]]:
    """Attempts without time limits, and their environments."""
    environments = [ScriptedEnvironment(*script) for script in scripts]
    return [manager(each, limits=UNLIMITED) for each in environments], environments


async def test_the_slowest_are_cancelled_once_enough_ended_well() -> None:
    began = asyncio.get_running_loop().time()
    managers, environments = group((STAY, STAY, DONE), (HANG,), (DONE,), (STAY, DONE))
    found = await first(managers, 2)
    assert asyncio.get_running_loop().time() - began < 60
    assert [len(each.turns) for each in found[:2]] == [1, 2], "in the order of their ends"
    assert [each.outcome for each in found[:2]] == [Outcome.COMPLETED] * 2
    for late in found[2:]:
        assert (late.outcome, late.reason) == (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
        assert late.token_ids, "what was sampled is kept"
    assert len(found) == 4
    assert [each.closed for each in environments] == [1] * 4


async def test_a_failed_attempt_is_made_up_for_by_a_redundant_one() -> None:
    managers, _ = group((ValueError("melted"),), (STAY, DONE), (STAY, STAY, DONE))
    found = await first(managers, 2)
    outcomes = [each.outcome for each in found]
    assert outcomes == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED]


async def test_failed_attempts_fill_up_a_group_with_too_few_others() -> None:
    managers, _ = group((ValueError("melted"),), (DONE,))
    found = await first(managers, 2)
    assert [each.outcome for each in found] == [Outcome.COMPLETED, Outcome.FAILED]


async def test_one_that_ends_before_it_can_be_cancelled_is_surplus_too() -> None:
    managers, _ = group((DONE,), (DONE,))
    counts, surplus = await first(managers, 1)
    assert counts.outcome is Outcome.COMPLETED
    assert (surplus.outcome, surplus.reward) == (Outcome.REDUNDANT, None)
