"""Settings that differ by domain: what nodes hold, what plan and run.json show, what is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from rollart_flow import Pipeline, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.errors import PipelineError, SettingsError
from rollart_flow.rewards.base import environment_reward
from rollart_flow.runner.recorded import check_as_recorded
from rollart_flow.serverless import ServerlessReward
from rollart_flow.store import RunInfo
from rollart_flow.types import Trajectory
from tests.pipeline.parts import LAKE, POLICY, SUMS

OWN = {"frozenlake": {"max_tokens": 4, "max_turns": 9, "step_timeout_s": 2}}
UNKNOWN = "names an unknown domain 'lake'; the domains are frozenlake, arithmetic"


def one(trajectory: Trajectory) -> float:
    return 1.0


def pipeline(**by_domain: Any) -> Pipeline:
    """Two domains; keywords are `by_domain` of the node of their name."""
    own = {name: {"by_domain": value} for name, value in by_domain.items()}
    attempts = rollout(tasks(LAKE, SUMS), POLICY, max_tokens=16, **own.get("rollout", {}))
    batches = buffer(reward(attempts, timeout_s=30, **own.get("reward", {})))
    scores = evaluate(POLICY, LAKE, SUMS, temperature=0.9, **own.get("evaluate", {}))
    return Pipeline("two", train(batches, POLICY, grpo(), steps=2), scores)


def test_a_domain_has_its_own_settings_and_the_node_s_for_all_others() -> None:
    node = pipeline(rollout=OWN).rollout
    lake, sums = (node.attempt_limits(domain, POLICY) for domain in (LAKE, SUMS))
    assert (lake.max_turns, lake.step_timeout_s) == (9, 2.0)
    assert (sums.max_turns, sums.step_timeout_s) == (SUMS.max_turns, 10.0)
    assert lake.trajectory_timeout_s == sums.trajectory_timeout_s == 300
    assert node.sampling_in("frozenlake") == replace(node.sampling, max_tokens=4)
    assert node.sampling_in("arithmetic") == node.sampling
    assert node.turns(LAKE) == 9


def test_a_reward_and_its_time_limit_are_those_of_the_domain() -> None:
    plain = pipeline().reward
    assert plain is not None
    assert plain.function is environment_reward
    node = pipeline(
        reward={"arithmetic": {"fn": one, "timeout_s": 5}, "frozenlake": {"fn": "http://a/b"}}
    ).reward
    assert node is not None
    assert [node.timeout_in(name) for name in ("arithmetic", "frozenlake")] == [5, 30]
    lake: Any = node.by_domain["frozenlake"]["fn"]
    assert isinstance(lake, ServerlessReward)
    assert lake.policy.deadline_s == 30


def test_an_endpoint_has_the_time_limit_of_the_domain_as_its_deadline() -> None:
    attempts = rollout(tasks(LAKE, SUMS), POLICY)
    node = reward(attempts, "http://a/b", by_domain={"arithmetic": {"timeout_s": 90}})
    default: Any = node.fn
    sums: Any = node.by_domain["arithmetic"]["fn"]
    assert (default.policy.deadline_s, sums.policy.deadline_s) == (30, 90)
    assert default.__name__ == sums.__name__


def test_they_are_set_from_outside_beside_those_of_the_file() -> None:
    changed = pipeline(rollout=OWN).override(
        {
            "rollout.by_domain.frozenlake.max_tokens": "8",
            "rollout.by_domain.arithmetic.temperature": "0.7",
            "evaluate.by_domain.frozenlake.top_p": "0.5",
            "reward.by_domain.arithmetic.timeout_s": "3",
        }
    )
    lake = {"max_tokens": 8, "max_turns": 9, "step_timeout_s": 2.0}
    assert changed.rollout.by_domain == {"frozenlake": lake, "arithmetic": {"temperature": 0.7}}
    assert changed.evaluate is not None
    assert changed.evaluate.sampling_in("frozenlake").top_p == 0.5
    assert changed.evaluate.sampling_in("frozenlake").temperature == 0.9
    assert changed.reward is not None
    assert changed.reward.timeout_in("arithmetic") == 3
    whole = changed.override({"rollout.by_domain": '{"arithmetic": {"top_k": 3}}'})
    assert whole.rollout.by_domain == {"arithmetic": {"top_k": 3}}


def test_the_plan_and_the_settings_of_a_run_hold_them() -> None:
    made = pipeline(rollout=OWN, reward={"arithmetic": {"fn": one}})
    said = {stage.node: stage.settings.splitlines() for stage in made.plan().stages}
    assert said["rollout"][1:] == ["frozenlake: max_tokens 4, max_turns 9, step_timeout_s 2.0"]
    assert said["reward"][1:] == [f"arithmetic: fn {__name__}:one"]
    nodes = json.loads(json.dumps(made.settings()))["nodes"]
    assert nodes["rollout"]["by_domain"] == OWN
    assert nodes["reward"]["by_domain"] == {"arithmetic": {"fn": f"{__name__}:one"}}
    assert nodes["evaluate"]["by_domain"] == {}


def test_a_run_is_not_resumed_with_others() -> None:
    info = RunInfo("run", "two", 0, settings=pipeline(rollout=OWN).settings(), term=1)
    check_as_recorded(pipeline(rollout=OWN), info)
    with pytest.raises(SettingsError, match=r"now gives rollout.by_domain = {}, but the run was"):
        check_as_recorded(pipeline(), info)


@pytest.mark.parametrize("node", ["rollout", "reward", "evaluate"])
def test_an_unknown_domain_is_one_line_with_the_known_ones(node: str) -> None:
    with pytest.raises(PipelineError, match=f"{node}: by_domain {UNKNOWN}"):
        pipeline(**{node: {"lake": {}}})
    key = "timeout_s" if node == "reward" else "max_tokens"
    with pytest.raises(SettingsError, match=f"{node}.by_domain {UNKNOWN}"):
        pipeline().override({f"{node}.by_domain.lake.{key}": "3"})


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"max_token": 4}, r"no setting 'max_token' \(did you mean max_tokens\?\)"),
        ({"max_tokens": 0}, r"max_tokens should be greater than or equal to 1, got 0"),
        ({"temperature": "hot"}, r"temperature should be a valid number, got 'hot'"),
        ({"step_timeout_s": float("inf")}, r"step_timeout_s should be a finite number, got inf"),
        (4, r"by_domain.frozenlake should be an instance of Mapping, got 4"),
    ],
)
def test_a_wrong_setting_is_named_with_its_domain(own: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said) as caught:
        pipeline(rollout={"frozenlake": own})
    assert str(caught.value).startswith("rollout: by_domain.frozenlake")


def test_a_wrong_key_from_outside_lists_the_settings_that_may_differ() -> None:
    with pytest.raises(SettingsError, match=r"did you mean rollout.by_domain.frozenlake.max_turns"):
        pipeline().override({"rollout.by_domain.frozenlake.max_turn": "3"})
    with pytest.raises(SettingsError) as caught:
        pipeline().override({"rollout.max_turn": "3"})
    assert "by_domain.frozenlake" not in str(caught.value)
