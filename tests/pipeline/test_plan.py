"""The plan says what runs where, from settings alone."""

import json

from tests.pipeline.parts import two_domains


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


def test_a_plan_is_json() -> None:
    plan = two_domains().plan()
    assert json.loads(json.dumps(plan.as_json()))["stages"][0]["node"] == "tasks"
