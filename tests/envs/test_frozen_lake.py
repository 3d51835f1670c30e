"""FrozenLake as text, on Gymnasium's own environment."""

import json
from itertools import islice
from random import Random

import gymnasium
import pytest

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake
from rollart_flow.envs.frozen_lake import ACTIONS, parse_action
from rollart_flow.errors import EnvironmentFailedError, PipelineError, SettingsError
from rollart_flow.types import Split, Task

SHORTEST = ("down", "down", "right", "right", "down", "right")


def first_task(domain: FrozenLake) -> Task:
    return next(domain.tasks(Split.TRAIN, 0))


def test_the_shortest_way_reaches_the_goal() -> None:
    lake = FrozenLake().make()
    observation, info = lake.reset(0, first_task(FrozenLake()).payload)
    assert (observation, info) == ("PFFF\nFHFH\nFFFH\nHFFG", {})
    *before, last = [lake.step(action) for action in SHORTEST]
    assert [answer[1:] for answer in before] == [(0.0, False, False, {"success": False})] * 5
    assert before[0][0] == "SFFF\nPHFH\nFFFH\nHFFG"
    assert last == ("SFFF\nFHFH\nFFFH\nHFFP", 1.0, True, False, {"success": True})


def test_a_brief_lake_shows_the_grid_once() -> None:
    lake = FrozenLake(brief=True).make()
    assert lake.reset(0, first_task(FrozenLake()).payload)[0] == "PFFF\nFHFH\nFFFH\nHFFG"
    assert [lake.step(action)[0] for action in SHORTEST][:3] == ["1,0", "2,0", "2,1"]


def test_a_hole_ends_it_without_reward() -> None:
    lake = FrozenLake().make()
    lake.reset(0, first_task(FrozenLake()).payload)
    lake.step("down")
    assert lake.step("right")[1:] == (0.0, True, False, {"success": False})


def test_no_action_costs_a_tenth_and_moves_nothing() -> None:
    lake = FrozenLake().make()
    before, _ = lake.reset(0, first_task(FrozenLake()).payload)
    assert lake.step("swim") == (before, -0.1, False, False, {"success": False})


def test_turns_are_limited_whether_valid_or_not_and_counted_anew_after_reset() -> None:
    lake = FrozenLake(max_turns=6).make()
    for _ in range(2):
        lake.reset(0, first_task(FrozenLake()).payload)
        ends = [lake.step(action)[2:4] for action in ("up", "", "left", "up", "?", "up")]
        assert ends == [(False, False)] * 5 + [(False, True)]


def test_reaching_the_goal_in_the_last_turn_is_no_truncation() -> None:
    lake = FrozenLake(max_turns=6).make()
    lake.reset(0, first_task(FrozenLake()).payload)
    assert [lake.step(action)[2:4] for action in SHORTEST][-1] == (True, False)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("left", 0),
        (" Down\n", 1),
        ("not left but RIGHT!", 2),
        ("Action: up.", 3),
        ("setup", None),
        ("", None),
    ],
)
def test_the_last_action_word_counts(text: str, action: int | None) -> None:
    assert parse_action(text) == action


def test_it_plays_as_gymnasium_plays_slippery_or_not() -> None:
    random = Random(5)
    for slippery in (False, True):
        domain = FrozenLake(size=8, max_turns=40, slippery=slippery)
        ours = domain.make()
        theirs = gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=slippery)
        for seed in range(10):
            ours.reset(seed, first_task(domain).payload)
            theirs.reset(seed=seed)
            ended = False
            while not ended:
                number = random.randrange(4)
                text, reward, terminated, truncated, _ = ours.step(ACTIONS[number])
                place, their_reward, their_end, _, _ = theirs.step(number)
                row = text.split("\n")[place // 8]
                assert row[place % 8] == "P"
                assert (reward, terminated) == (their_reward, their_end)
                ended = terminated or truncated


def test_tasks_of_the_fixed_map() -> None:
    domain = FrozenLake()
    train = list(islice(domain.tasks(Split.TRAIN, 1), 3))
    assert train == list(domain.tasks(Split.EVALUATION, 2)) * 3
    assert json.loads(train[0].payload) == {"map": ["SFFF", "FHFH", "FFFH", "HFFG"]}
    assert train[0].domain == domain.name == "frozenlake"
    assert list(domain.held_out(0)) == []


def test_random_maps_are_the_same_for_the_same_seed_and_differ_between_splits() -> None:
    domain = FrozenLake(size=6, random_maps=True, max_turns=30)
    train = list(islice(domain.tasks(Split.TRAIN, 3), 20))
    assert train == list(islice(domain.tasks(Split.TRAIN, 3), 20))
    evaluation = list(domain.tasks(Split.EVALUATION, 3))
    assert len(evaluation) == len({task.task_id for task in evaluation}) == 64
    assert not {task.payload for task in train} & {task.payload for task in evaluation}
    lake = domain.make()
    for task in train[:3]:
        observation, _ = lake.reset(0, task.payload)
        assert "P" + observation[1:] == observation
        assert observation.replace("P", "S").split("\n") == json.loads(task.payload)["map"]


def test_instructions_precede_the_first_observation_only() -> None:
    lake = FrozenLake(instructions="Walk to G.\n").make()
    observation, _ = lake.reset(0, first_task(FrozenLake()).payload)
    assert observation.startswith("Walk to G.\nPFFF")
    assert lake.step("right")[0].startswith("SPFF")


def test_example_actions_are_all_four() -> None:
    task, random = first_task(FrozenLake()), Random(0)
    assert {FrozenLake().example_action(task, random) for _ in range(50)} == set(ACTIONS)


def test_settings_that_cannot_be_played_are_refused() -> None:
    with pytest.raises(SettingsError, match="no fixed map of size 5; take 4 or 8"):
        FrozenLake(size=5)
    with pytest.raises(SettingsError, match="the goal is 14 moves away"):
        FrozenLake(size=8)
    with pytest.raises(SettingsError, match="must be 2 or more"):
        FrozenLake(size=1, random_maps=True)


def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(EnvironmentFailedError, match="call reset first"):
        FrozenLake().make().step("up")


def test_the_visual_mode_shows_the_frames_of_gymnasium() -> None:
    lake = FrozenLake(visual=True, tile_pixels=8, instructions="Go to the present.")
    environment = lake.make()
    task = next(lake.tasks(Split.TRAIN, 0))

    (first,), _ = environment.reset(0, task.payload)
    (second,), *_ = environment.step("right")
    (third,), *_ = environment.step("nowhere")

    text, frame = first.parts
    assert text == "Go to the present."
    assert frame.size == (32, 32)
    assert second.images != first.images
    assert third.images == second.images
    assert environment.reset(0, task.payload)[0] == [first]


def test_only_a_policy_that_sees_is_shown_frames() -> None:
    policy = Policy.tiny()
    steps = train(
        buffer(reward(rollout(tasks(FrozenLake(visual=True)), policy))), policy, grpo(), steps=1
    )

    with pytest.raises(PipelineError, match="frozenlake shows images, but the embedded engine"):
        Pipeline("sees", steps)
    with pytest.raises(SettingsError, match="brief"):
        FrozenLake(visual=True, brief=True)
