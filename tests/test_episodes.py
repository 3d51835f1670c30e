"""Branches of one attempt, together as one trajectory."""

import json
from dataclasses import replace

from rollart_flow.episodes import like, whole
from rollart_flow.types import Image, Outcome, Reason, Trajectory, Turn
from tests.builders import TRAJECTORY, exchange

IMAGES = (Image("0" * 64), Image("1" * 64))
TURN = Turn(0, 4, "look", "go", 0.5, 0.1, 0.1, "cpu", "engine-0", "stop")

FIRST = replace(
    TRAJECTORY,
    policy_version_start=3,
    policy_version_end=4,
    token_ids=(1, 2, 10, 11),
    action_mask=(False, False, True, True),
    logprobs=(0.0, 0.0, -0.5, -0.25),
    token_versions=(-1, -1, 3, 4),
    kept_token_ids=((10, 12), (11,)),
    turns=(TURN,),
    messages=json.dumps([{"turn": 0, "role": "user", "content": "look"}]),
    tool_calls=2,
    tool_errors=0,
    images=IMAGES[:1],
)
SECOND = replace(
    FIRST,
    trajectory_id=f"{FIRST.trajectory_id}.1",
    branch=1,
    parent=FIRST.trajectory_id,
    shared_tokens=3,
    policy_version_start=2,
    policy_version_end=5,
    token_ids=(1, 2, 10, 20, 21),
    action_mask=(False, False, False, False, True),
    logprobs=(0.0, 0.0, 0.0, 0.0, -0.75),
    token_versions=(-1, -1, -1, -1, 2),
    kept_token_ids=((21,),),
    turns=(replace(TURN, start=3, end=5, reward=1.0),),
    images=IMAGES,
    messages=json.dumps(
        [{"turn": turn, "role": "user", "content": "look"} for turn in (0, 1)],
    ),
)


def test_an_episode_has_each_token_once_and_all_turns() -> None:
    episode = whole((FIRST, SECOND))
    assert episode.token_ids == (1, 2, 10, 11, 20, 21)
    assert episode.action_mask == (False, False, True, True, False, True)
    assert episode.logprobs == (0.0, 0.0, -0.5, -0.25, 0.0, -0.75)
    assert episode.token_versions == (-1, -1, 3, 4, -1, 2)
    assert episode.kept_token_ids == ((10, 12), (11,), (21,))
    assert [(turn.start, turn.end, turn.reward) for turn in episode.turns] == [
        (0, 4, 0.5),
        (4, 6, 1.0),
    ]
    assert (episode.policy_version_start, episode.policy_version_end) == (2, 5)
    assert [each["turn"] for each in json.loads(episode.messages or "")] == [0, 1]
    assert (episode.tool_calls, episode.tool_errors) == (4, 0)
    assert episode.images == IMAGES
    assert episode.trajectory_id == FIRST.trajectory_id


def test_a_branch_without_a_generated_token_has_no_say_in_the_versions() -> None:
    empty: Trajectory = replace(SECOND, policy_version_start=None, policy_version_end=None)
    assert whole((FIRST, empty)).policy_version_start == 3


def test_one_branch_is_the_episode() -> None:
    assert whole((FIRST,)) is FIRST


def test_outcome_and_reward_are_those_of_all_branches() -> None:
    found = replace(whole((FIRST, SECOND)), reward=0.25, outcome=Outcome.FAILED)
    found = replace(found, reason=Reason.REWARD_ERROR, error="broke")
    for before, after in zip((FIRST, SECOND), like((FIRST, SECOND), found), strict=True):
        assert (after.outcome, after.reason, after.error) == (found.outcome, found.reason, "broke")
        assert after.reward == 0.25
        assert after.token_ids == before.token_ids


def test_a_row_whose_tokens_are_withheld_keeps_its_reason() -> None:
    kept = replace(FIRST, outcome=Outcome.COMPLETED, reason=None, error=None)
    lost = replace(kept, branch=1, reason=Reason.UNANSWERED, error="the engine broke")
    for branches in ((kept, lost), (lost, kept)):
        found = whole(branches)
        assert (found.reason, found.error) == (None, None)
        scored = like(branches, replace(found, reward=0.5))
        assert {(each.reason, each.error) for each in scored} == {
            (None, None),
            (Reason.UNANSWERED, "the engine broke"),
        }
        assert {each.reward for each in scored} == {0.5}


def test_the_calls_of_an_agent_are_those_of_the_episode_and_of_branch_0() -> None:
    calls = tuple(map(exchange, range(2)))
    first = replace(TRAJECTORY, exchanges=calls)
    branches = (first, replace(TRAJECTORY, trajectory_id="other", branch=1))
    assert whole(branches).exchanges == calls
    scored = like(branches, replace(whole(branches), reward=1.0))
    assert [each.exchanges for each in scored] == [calls, None]
    assert [each.reward for each in scored] == [1.0, 1.0]
