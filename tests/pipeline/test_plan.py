"""The plan says what runs where, from settings alone."""

import json
from typing import Any

import pytest

from rollart_flow import Pipeline, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.errors import PipelineError
from rollart_flow.pipeline.described import describe
from rollart_flow.rewards import Judge, Part, RewardFunction, compose, exact
from rollart_flow.types import Trajectory
from tests.pipeline.parts import POLICY, SUMS, two_domains
from tests.sandbox.probes import Probe


class Stateless:
    """A reward of the user's own that is called as an instance."""

    def __call__(self, trajectory: Trajectory) -> float:
        return 1.0


def always(trajectory: Trajectory) -> float:
    return 1.0


def test_every_node_has_a_stage_in_one_of_the_streams() -> None:
    plan = two_domains().plan()
    streams = {stage.node: stage.stream for stage in plan.stages}
    assert streams == {
        "tasks": "producer",
        "rollout": "producer",
        "reward": "producer",
        "no_nonsense": "producer",
        "buffer": "producer",
        "train": "consumer",
        "evaluate": "evaluation",
    }


def test_edges_follow_the_data_and_the_policy_comes_back() -> None:
    edges = {(edge.source, edge.target): edge.carries for edge in two_domains().plan().edges}
    assert edges["reward", "no_nonsense"] == "scored trajectories"
    assert edges["buffer", "train"] == "batches"
    assert edges["train", "rollout"] == edges["train", "evaluate"] == "policy versions"
    assert len(edges) == 7


def test_resources_are_those_asked_for_with_what_cpus_give_instead() -> None:
    (rollout,) = [stage for stage in two_domains().plan().stages if stage.kind == "rollout"]
    assert [(want.domain, want.resource, want.fallback) for want in rollout.wants] == [
        ("frozenlake", "H800", "CPU"),
        ("arithmetic", "H20", "CPU"),
    ]


def test_where_resources_are_found_and_not_given_the_plan_says_so() -> None:
    changed = two_domains().override({"rollout.hw_affinity": "auto"})
    (rollout,) = [stage for stage in changed.plan().stages if stage.kind == "rollout"]
    assert [(want.domain, want.resource, want.fallback) for want in rollout.wants] == [
        ("frozenlake", "auto", "CPU"),
        ("arithmetic", "auto", "CPU"),
    ]


def test_boxes_are_asked_for_where_a_domain_opens_them() -> None:
    attempts = rollout(
        tasks(SUMS, Probe()),
        POLICY,
        sandbox_workers=3,
        sandbox_affinity={"probe": ("BOXES", "CPU")},
    )
    plan = Pipeline("p", train(buffer(reward(attempts)), POLICY, grpo(), steps=1)).plan()
    (stage,) = [stage for stage in plan.stages if stage.kind == "rollout"]
    assert stage.parallel.endswith(", 3 for boxes")
    assert [(want.domain, want.resource) for want in stage.wants] == [
        ("arithmetic", "CPU"),
        ("probe", "CPU"),
        ("boxes of probe", "BOXES"),
    ]
    assert "boxes" not in str(two_domains().plan().stages)


@pytest.mark.parametrize(
    ("affinity", "said"),
    [
        ({"nothing": "CPU"}, "sandbox_affinity"),
        ({"probe": ()}, r"sandbox_affinity\['probe'\] names no class"),
        ({"probe": ("A", "B"), "default": ("A", "C")}, "different stand-ins for A"),
    ],
)
def test_an_affinity_of_boxes_that_cannot_be_is_refused(affinity: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        rollout(tasks(SUMS, Probe()), POLICY, sandbox_affinity=affinity)


def test_a_plan_is_json() -> None:
    plan = two_domains().plan()
    assert json.loads(json.dumps(plan.as_json()))["stages"][0]["node"] == "tasks"


def test_a_reward_is_named_also_where_it_is_an_instance() -> None:
    def scored_by(fn: RewardFunction) -> str:
        scored = reward(rollout(tasks(SUMS, group_size=8), POLICY), fn)
        steps = train(buffer(scored, batch_size=8, alpha=1), POLICY, grpo(), steps=1)
        stages = Pipeline("named", steps).plan().stages
        return next(stage.settings for stage in stages if stage.kind == "reward")

    assert scored_by(always) == "by always"
    assert scored_by(compose(exact())) == "by Composition"
    assert scored_by(Stateless()) == "by Stateless"


def test_a_recorded_reward_is_equal_from_run_to_run() -> None:
    judge = Judge(url="http://localhost/v1", model="m", key_variable="KEY")
    recorded = json.dumps(describe(compose(exact("7"), Part("judge", judge))))
    assert json.loads(recorded)["outcome"]["expected"] == ["7"]
    assert '"key_variable": "KEY"' in recorded
    assert " at 0x" not in recorded
    assert describe(Stateless()) == f"{__name__}:Stateless"
