"""Sokoban: levels that can be solved, and the rules."""

import json
from itertools import islice

import pytest

from rollart_flow.envs import Sokoban
from rollart_flow.envs.sokoban import parse_board
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Split
from tests.envs.families import check_random_play, check_solutions, check_split

LEVEL = json.dumps({"map": ["######", "#@$._#", "#_$._#", "######"]})


@pytest.mark.parametrize(
    "domain", [Sokoban(), Sokoban(5, 1, max_turns=6), Sokoban(8, 4, max_turns=60)]
)
def test_every_level_can_be_solved_in_its_turns(domain: Sokoban) -> None:
    for task in [*islice(domain.tasks(Split.TRAIN, 0), 12), *islice(domain.held_out(0), 8)]:
        assert len(domain.solutions(task)["gold"]) <= domain.max_turns
        check_solutions(domain, task)
        check_random_play(domain, task)


def test_its_tasks_are_split() -> None:
    check_split(Sokoban(train_tasks=100, evaluation_tasks=16, held_out_tasks=16))


def test_a_box_is_pushed_onto_its_goal_but_not_into_a_wall_or_another_box() -> None:
    environment = Sokoban(box_reward=0.5).make()
    assert environment.reset(0, LEVEL)[0] == "######\n#@$._#\n#_$._#\n######"
    shown, reward, terminated, _, info = environment.step("I push right.")
    assert (shown, reward, terminated) == ("######\n#_@*_#\n#_$._#\n######", 0.25, False)
    assert environment.step("down")[1] == -0.1
    assert environment.step("Up")[1] == -0.1
    assert environment.step("no move")[1] == -0.1
    assert environment.step("right")[1] == -0.25
    assert environment.step("right")[1] == -0.1
    for move in ("left", "left", "down"):
        environment.step(move)
    shown, reward, terminated, _, info = environment.step("right")
    assert (reward, terminated, info["success"]) == (0.25, False, False)
    assert shown == "######\n#__.$#\n#_@*_#\n######"


def test_the_reward_is_one_for_a_solved_level() -> None:
    environment = Sokoban(max_turns=20).make()
    environment.reset(0, LEVEL)
    rewards = [environment.step(move)[1] for move in ("right", "left", "down", "right")]
    assert rewards == [0.0, 0.0, 0.0, 1.0]


def test_turns_are_limited() -> None:
    environment = Sokoban(max_turns=4).make()
    environment.reset(0, LEVEL)
    ends = [environment.step("wait")[3] for _ in range(4)]
    assert ends == [False, False, False, True]


def test_a_level_of_another_version_has_no_known_solution() -> None:
    task = Sokoban().task(3)
    assert Sokoban(7).solutions(task) == {}


def test_what_is_no_level_is_refused() -> None:
    with pytest.raises(EnvironmentFailedError, match="no level of the signs"):
        parse_board(["###", "#@$"])
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        Sokoban().make().step("up")


@pytest.mark.parametrize(
    "settings", [{"size": 4}, {"boxes": 3}, {"boxes": 0}, {"max_turns": 3}, {"box_reward": 2.0}]
)
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="Sokoban: "):
        Sokoban(**settings)  # type: ignore[arg-type]
