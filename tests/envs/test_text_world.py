"""Adventures of TextWorld."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random

import pytest

from rollart_flow.envs import TextWorld
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.process import ProcessEnvironment
from rollart_flow.errors import EnvironmentFailedError, SettingsError
from rollart_flow.types import Split
from tests.envs.families import LONGEST, check_random_play, check_solutions, check_split
from tests.extras import needs

needs("textworld", "textworld")


@pytest.mark.parametrize(
    "domain", [TextWorld(), TextWorld(rooms=5, objects=10, quest_length=6, max_turns=20)]
)
def test_the_walkthrough_completes_the_quest(domain: TextWorld) -> None:
    for task in [*islice(domain.tasks(Split.TRAIN, 0), 3), next(domain.held_out(0))]:
        assert len(domain.solutions(task)["gold"]) <= domain.max_turns
        check_solutions(domain, task)


def test_play_is_seeded_and_bounded() -> None:
    domain = TextWorld()
    check_split(domain)
    check_random_play(domain, domain.task(1))


def test_worlds_that_threads_play_at_once_are_those_of_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TextWorld's parser belongs to its module; without a lock, threads confuse it at once."""
    from textworld.generator.text_grammar import Grammar  # type: ignore[import-untyped]

    monkeypatch.setattr(Grammar, "_cache", {})  # what it parses first is kept
    domain = TextWorld()

    def played(number: int) -> list[str]:
        task, environment = domain.task(number), domain.make()
        shown = [environment.reset(0, task.payload)[0]]
        return shown + [environment.step(each)[0] for each in domain.solutions(task)["gold"]]

    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(3) as threads:
            at_once = [*threads.map(played, range(3))]
    finally:
        sys.setswitchinterval(usual_s)
    assert at_once == [*map(played, range(3))]


def test_every_possible_command_is_described_and_works() -> None:
    domain = TextWorld(rooms=4, objects=8, quest_length=5, max_turns=60)
    environment, random = domain.make(), Random(0)
    shown, _ = environment.reset(0, domain.task(2).payload)
    for _ in range(60):
        lines = shown.splitlines()
        assert len(shown) <= LONGEST
        assert sum(line.startswith("You are in the ") for line in lines) == 1
        exits = {line.split()[1].rstrip(".") for line in lines if line.startswith("Exit ")}
        commands = lines[-1].removeprefix("Possible: ").rstrip(".").split(", ")
        assert {each.removeprefix("go ") for each in commands if each.startswith("go ")} <= exits
        taken = [each.removeprefix("take ") for each in commands if each.startswith("take ")]
        assert all(any(name.split(" from ")[0] in line for line in lines) for name in taken)
        shown, _, terminated, truncated, info = environment.step(random.choice(commands))
        assert info["invalid_actions"] == 0
        if terminated or truncated:
            break


def test_a_command_may_stand_in_a_text_and_one_that_is_not_possible_is_counted() -> None:
    domain = TextWorld(commands=False, invalid_reward=-0.1)
    task = domain.task(0)
    environment = domain.make()
    shown, _ = environment.reset(0, task.payload)
    assert "Possible:" not in shown
    told, reward, _, _, info = environment.step("fly")
    assert told.startswith("That is not possible.\nYou are in the ")
    assert (reward, info["invalid_actions"]) == (-0.1, 1)
    first = domain.solutions(task)["gold"][0]
    told, reward, _, _, info = environment.step(f"I think:\n> {first.upper()}.")
    assert (reward, info["invalid_actions"]) == (0.0, 1)


def test_it_runs_in_a_process() -> None:
    assert isinstance(open_environment(TextWorld()), ProcessEnvironment)


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_turns=2"):
        TextWorld(max_turns=2)
    with pytest.raises(SettingsError, match="rooms=0"):
        TextWorld(rooms=0)
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        TextWorld().make().step("look")
