"""Which workers a pipeline asks for."""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake
from rollart_flow.resources import Placement, Request
from rollart_flow.runner.placing import place_sliding


def pipeline(sliding: int) -> Pipeline:
    policy = Policy.tiny()
    attempts = rollout(tasks(FrozenLake()), policy, sliding_workers=sliding)
    return Pipeline("p", train(buffer(reward(attempts)), policy, grpo(), steps=1))


def test_sliding_workers_share_what_is_reserved_for_the_trainers() -> None:
    trainers = [
        Placement(f"trainer-h800-{i}", "training", "H800", group="gang", bundle=i) for i in range(2)
    ]
    placed = place_sliding(pipeline(3), trainers)
    assert [p.worker for p in placed] == [f"sliding-h800-{i}" for i in range(3)]
    assert [(p.group, p.bundle) for p in placed] == [("gang", 0), ("gang", 1), ("gang", 0)]
    assert {(p.role, p.granted, p.shares) for p in placed} == {("generation", "H800", True)}
    assert placed[0].requests == (Request("default", "H800"),)
    assert place_sliding(pipeline(0), trainers) == []
