"""The games of GEM."""

import random
from itertools import islice

import pytest

from rollart_flow.envs import GemGame
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.gem_game import story_words
from rollart_flow.envs.process import ProcessEnvironment
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Split
from tests.envs.families import check_random_play, check_solutions, check_split, play
from tests.extras import needs

needs("gem", "games")
SOLVED = (
    "Crosswords-v0-hard",
    "FifteenPuzzle-v0-easy",
    "GuessTheNumber-v0-hard",
    "Hangman-v0-easy",
    "Mastermind-v0-hard",
    "Minesweeper-v0-easy",
    "Sokoban-v0-easy",
    "Sudoku-v0-easy",
    "TowerofHanoi-v0-easy",
    "WordSearch-v0-easy",
    "Wordle-v0-easy",
)


@pytest.mark.parametrize("game", [*SOLVED, "Game2048-v0-easy"])
def test_a_game_is_deterministic_and_its_observations_are_bounded(game: str) -> None:
    domain = GemGame(game, brief=True)
    for number in range(2):
        check_random_play(domain, domain.task(number), number)


@pytest.mark.parametrize("game", SOLVED)
def test_known_moves_win(game: str) -> None:
    domain = GemGame(game)
    for task in [*islice(domain.tasks(Split.TRAIN, 0), 2), next(domain.held_out(0))]:
        check_solutions(domain, task)


@pytest.mark.whole
def test_every_game_of_the_package_is_played_but_those_that_it_cannot_make() -> None:
    with pytest.raises(EnvironmentFailedError) as error:
        GemGame("Nothing-v0").make()
    names = str(error.value).partition(" has ")[2].partition(" has ")[2].split(", ")
    assert len(names) >= 28
    broken = []
    for name in names:
        if "Sokoban" in name and "easy" not in name:
            continue  # a board may take a minute
        domain = GemGame(name)
        try:
            domain.make()
        except (TypeError, ValueError):
            broken.append(name)
            continue
        check_random_play(domain, domain.task(1))
    assert set(broken) <= {"Crosswords-v0-random", "FifteenPuzzle-v0-random"}


def test_its_name_is_that_of_the_game_and_its_tasks_are_split() -> None:
    domain = GemGame("Wordle-v0-hard", train_tasks=30, evaluation_tasks=8)
    assert domain.name == "Wordle-v0-hard"
    check_split(domain)


def test_the_global_generators_are_left_as_they_were_and_do_not_matter() -> None:
    import numpy as np

    domain = GemGame("Game2048-v0-easy")
    moves = ["left", "up", "right", "down"] * 3
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).random()
    found = play(domain, domain.task(0), [*moves])
    assert (random.random(), np.random.random()) == expected
    game, other = domain.make(), domain.make()
    game.reset(0, domain.task(0).payload)
    other.reset(0, domain.task(1).payload)
    total = 0.0
    for move in moves:  # two games in turn in one process
        total += game.step(move)[1]
        other.step(move)
        random.random()
    assert total == found[0]


def test_a_text_without_a_box_is_an_action_too() -> None:
    domain = GemGame("TowerofHanoi-v0-easy", brief=True)
    game = domain.make()
    shown = game.reset(0, domain.task(0).payload)[0]
    assert shown.startswith("Here is the current state") or "A: [3, 2, 1]" in shown
    assert "moved disk 1" in game.step("A C")[0]
    assert "moved disk 2" in game.step("I think \\boxed{A B}.")[0]
    assert game.step("nonsense")[1:3] == (-0.1, True)


def test_slow_boards_are_made_in_a_process() -> None:
    assert isinstance(open_environment(GemGame("Sokoban-v0-easy")), ProcessEnvironment)
    assert not isinstance(open_environment(GemGame("Wordle-v0-easy")), ProcessEnvironment)


def test_words_come_from_a_story() -> None:
    words = story_words()
    assert len(words) > 1500
    assert {"journal", "world", "day"} <= set(words)


def test_what_is_no_game_is_refused() -> None:
    with pytest.raises(SettingsError, match='without "game:"'):
        GemGame("game:Sokoban-v0-easy")
    with pytest.raises(EnvironmentFailedError, match="has no game 'Sokoban-v7'; the installed"):
        GemGame("Sokoban-v7").make()
