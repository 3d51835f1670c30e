"""Environments of Gymnasium in text."""

import pytest

from rollart_flow.envs import GymnasiumText
from rollart_flow.envs.gymnasium_text import described_values, plain_text
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from tests.envs.families import check_random_play, check_solutions, check_split, play

CLIFF = ["up", *["right"] * 11, "down"]


@pytest.mark.parametrize("game", ["Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "FrozenLake-v1"])
def test_a_toy_game_is_played_in_one_line(game: str) -> None:
    domain = GymnasiumText(game, train_tasks=50, evaluation_tasks=8, held_out_tasks=8)
    assert domain.name == game
    assert domain.environment.inline
    check_split(domain)
    for number in range(4):
        check_random_play(domain, domain.task(number), number)


def test_it_is_solved_by_the_reward_of_its_end() -> None:
    cliff = GymnasiumText("CliffWalking-v1", max_turns=20)
    assert play(cliff, cliff.task(0), [*CLIFF]) == (-13.0, True)
    assert play(cliff, cliff.task(0), ["right"] * 20) == (-100.0 * 20, False)
    paid = GymnasiumText("CliffWalking-v1", sparse=True)
    assert play(paid, paid.task(0), [*CLIFF]) == (1.0, True)
    never = GymnasiumText("CliffWalking-v1", success_reward=0.0)
    assert play(never, never.task(0), [*CLIFF]) == (-13.0, False)


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("FrozenLake-v1", {"is_slippery": False}),
        ("FrozenLake-v1", {"map_name": "8x8"}),
        ("Taxi-v4", {}),
        ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
        ("CliffWalking-v1", {}),
        ("CliffWalking-v1", {"is_slippery": True}),
    ],
)
def test_a_game_that_exposes_its_model_is_solved(game: str, options: dict[str, object]) -> None:
    domain = GymnasiumText(game, options=options, max_turns=100)
    for number in range(2):
        check_solutions(domain, domain.task(number))
    assert "gold" not in GymnasiumText(game, options=options, max_turns=2).solutions(domain.task(0))


def test_a_solution_of_ones_own_is_taken_and_without_one_blackjack_has_none() -> None:
    own = GymnasiumText("CartPole-v1", solution=lambda number: ["1", str(number)], max_turns=5)
    assert own.solutions(own.task(0)) == {"gold": ["1", "0"], "noop": [""] * 5}
    assert not GymnasiumText("Blackjack-v1").solutions(own.task(0))
    assert not GymnasiumText("CartPole-v1").solutions(own.task(0))


def test_an_action_is_a_name_or_a_number_and_others_are_answered_and_counted() -> None:
    game = GymnasiumText("FrozenLake-v1", options={"is_slippery": False}, max_turns=5).make()
    assert game.reset(0, '{"number": 0}')[0] == "<on red:S>FFF\nFHFH\nFFFH\nHFFG"
    assert game.step("not left but Down")[0].endswith("SFFF\n<on red:F>HFH\nFFFH\nHFFG")
    assert game.step("3")[0].endswith("<on red:S>FFF\nFHFH\nFFFH\nHFFG")
    told, reward, terminated, _, info = game.step("jump 17 times, downwards")
    assert told == "No action is named. The actions are: left, down, right, up."
    assert (reward, terminated, info["invalid_actions"]) == (-0.1, False, 1)
    assert game.step("2.5")[4]["invalid_actions"] == 2
    assert game.step("")[3], "the turns are over"


def test_another_game_runs_in_a_process_and_shows_its_values() -> None:
    domain = GymnasiumText("CartPole-v1", actions=("left", "right"))
    assert not domain.environment.inline
    game = domain.make()
    assert len(game.reset(0, '{"number": 0}')[0].split(", ")) == 4
    assert game.step("right")[1:3] == (1.0, False)
    check_random_play(domain, domain.task(0))


def test_values_are_described_with_their_names() -> None:
    assert described_values((14, 10, 0), ("own", "dealer", "ace")) == "own: 14, dealer: 10, ace: 0"
    assert described_values(3) == "3"
    assert described_values({"at": [0.25, 1.0]}) == "at: 0.25, 1"
    assert described_values(((1, 2), 3)) == "1, 2, 3"


def test_colours_are_written_out() -> None:
    shown = plain_text("\n|\x1b[35m\x1b[43mY\x1b[0m\x1b[0m|\x1b[34;1mB\x1b[0m\x1b[1mx\x1b[0m|\n")
    assert shown == "|<magenta on yellow:Y>|<blue:B>x|"


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (GymnasiumText("Nothing-v0"), "Nothing"),
        (GymnasiumText("Pendulum-v1"), "only Discrete ones can be named in text"),
        (GymnasiumText("Taxi-v4", actions=("a", "b")), "has 6 actions, but 2 names: a, b"),
        (GymnasiumText("Taxi-v4", options={"nonsense": 1}), "nonsense"),
    ],
)
def test_what_cannot_be_played_is_said_when_it_is_made(domain: GymnasiumText, message: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=message):
        domain.make()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="game is empty"):
        GymnasiumText("")
    with pytest.raises(SettingsError, match="each needs a name of its own"):
        GymnasiumText("Taxi-v4", actions=("a", "A"))
    with pytest.raises(SettingsError, match="max_turns=0"):
        GymnasiumText("Taxi-v4", max_turns=0)
