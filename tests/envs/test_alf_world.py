"""Household tasks of ALFWorld."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rollart_flow.envs import AlfWorld
from rollart_flow.envs.alf_world import GOALS
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from tests.envs.families import check_random_play, check_solutions, check_split
from tests.extras import needs


def test_a_goal_or_size_that_is_unknown_is_refused() -> None:
    with pytest.raises(SettingsError, match="take of pick_and_place_simple, "):
        AlfWorld(goals=("nothing",))
    with pytest.raises(SettingsError, match="max_turns=3"):
        AlfWorld(max_turns=3)


def test_tasks_have_the_goals_in_turn() -> None:
    domain = AlfWorld(train_tasks=40, evaluation_tasks=8, held_out_tasks=8)
    check_split(domain)
    assert [domain.task(n).task_id for n in range(5)] == [
        f"alfworld/{goal}/{n}" for n, goal in enumerate((*GOALS, next(iter(GOALS))))
    ]


@pytest.mark.parametrize("number", range(len(GOALS)))
def test_the_planner_reaches_every_goal(number: int) -> None:
    needs("fast_downward", "alfworld")
    domain = AlfWorld(places=3, things=3)
    check_solutions(domain, domain.task(number))


def test_houses_may_be_entered_in_several_threads() -> None:
    needs("fast_downward", "alfworld")
    domain = AlfWorld(places=3, things=2)

    def entered(number: int) -> object:
        return domain.make().reset(0, domain.task(number).payload)[0]

    with ThreadPoolExecutor(3) as threads:
        assert all("Your task is to" in str(shown) for shown in threads.map(entered, range(6)))


def test_play_is_seeded_and_commands_that_are_not_possible_change_nothing() -> None:
    needs("fast_downward", "alfworld")
    domain = AlfWorld(places=3, things=3, commands=True)
    check_random_play(domain, domain.task(0), turns=6)
    environment = domain.make()
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        environment.step("look")
    shown, _ = environment.reset(0, domain.task(1).payload)
    assert "Your task is to: " in shown
    assert "Possible: go to " in shown
    told, reward, _, _, info = environment.step("fly")
    assert told.startswith("Nothing happens.")
    assert (reward, info["invalid_actions"]) == (0.0, 1)
    assert environment.step("I will:\n> go to fridge 1")[0].startswith("You arrive at fridge 1.")
