"""Minesweeper: boards that need no guess, and the rules."""

import json
from itertools import islice

import pytest

from rollart_flow.envs import Minesweeper
from rollart_flow.envs.minesweeper import MineField, solved_by_logic
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Split
from tests.envs.families import check_random_play, check_solutions, check_split

BOARD = json.dumps({"size": 4, "mines": [[0, 0], [0, 2], [2, 0]], "start": [3, 3]})


@pytest.mark.parametrize(
    "domain", [Minesweeper(), Minesweeper(3, 1), Minesweeper(8, 12, max_turns=64)]
)
def test_every_board_can_be_solved_without_a_guess(domain: Minesweeper) -> None:
    for task in [*islice(domain.tasks(Split.TRAIN, 0), 10), *islice(domain.held_out(0), 5)]:
        assert len(domain.solutions(task)["gold"]) <= domain.max_turns
        check_solutions(domain, task)
        check_random_play(domain, task)


def test_its_tasks_are_split() -> None:
    check_split(Minesweeper(train_tasks=100, evaluation_tasks=16, held_out_tasks=16))


def test_cells_are_opened_until_a_mine_is() -> None:
    environment = Minesweeper(cell_reward=0.5).make()
    assert environment.reset(0, BOARD)[0] == "  0123\n0 ....\n1 .311\n2 .100\n3 .100"
    shown, reward, terminated, _, info = environment.step("I open 0 3")
    assert reward == pytest.approx(0.5 / 4)
    assert not terminated
    assert shown == "  0123\n0 ...1\n1 .311\n2 .100\n3 .100"
    shown, reward, terminated, _, info = environment.step("0 2")
    assert (shown.splitlines()[1], reward, terminated, info["success"]) == (
        "0 ..*1",
        0.0,
        True,
        False,
    )


def test_cells_beside_one_without_a_number_open_with_it() -> None:
    field = MineField(4, frozenset({(0, 0)}))
    assert field.opened((3, 3), ()) == field.safe
    assert field.number((1, 1)) == 1
    assert field.opened((0, 1), ()) == {(0, 1)}


def test_a_board_that_needs_a_guess_is_known() -> None:
    field = MineField(3, frozenset({(0, 0), (2, 2)}))
    assert solved_by_logic(field, field.opened((1, 1), ())) is None


def test_what_names_no_closed_cell_is_invalid_and_turns_are_limited() -> None:
    domain = Minesweeper(3, 1, max_turns=8)
    task = domain.task(0)
    environment = domain.make()
    environment.reset(0, task.payload)
    row, column = json.loads(task.payload)["start"]
    rewards = [environment.step(text)[1] for text in (f"{row} {column}", "7 7", "none", "1")]
    assert rewards == [-0.1] * 4
    assert [environment.step("none")[3] for _ in range(4)] == [False, False, False, True]
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        Minesweeper().make().step("0 0")


def test_all_of_the_reward_is_paid_for_a_board_however_it_is_split() -> None:
    for share in (0.0, 0.5, 1.0):
        domain = Minesweeper(cell_reward=share)
        task = domain.task(1)
        environment = domain.make()
        environment.reset(0, task.payload)
        rewards = [environment.step(action)[1] for action in domain.solutions(task)["gold"]]
        assert sum(rewards) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "settings", [{"size": 2}, {"mines": 6}, {"max_turns": 5}, {"cell_reward": -1.0}]
)
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="Minesweeper: "):
        Minesweeper(**settings)  # type: ignore[arg-type]
