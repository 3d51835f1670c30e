"""Which workers a pipeline asks for."""

import pytest
import torch

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake
from rollart_flow.errors import RunFailedError
from rollart_flow.resources import Placement, Request, ResourceManager
from rollart_flow.runner.placement import place_sliding, place_workers, preview


def pipeline(sliding: int) -> Pipeline:
    policy = Policy.tiny()
    attempts = rollout(tasks(FrozenLake()), policy, sliding_workers=sliding)
    steps = train(buffer(reward(attempts)), policy, grpo(), steps=1)
    return Pipeline("p", steps, evaluate(policy, FrozenLake()))


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="Ray counts the GPUs of this machine")
def test_a_policy_on_cuda_is_refused_where_ray_counts_no_gpu(shared_ray: None) -> None:
    built = pipeline(0).override({"policy.device": "cuda"})
    refused = r"^policy\.device='cuda', but Ray counts no"
    with pytest.raises(RunFailedError, match=refused):
        preview(built)


def test_what_computes_on_a_gpu_is_placed_there(ray_of_gpus: None) -> None:
    built = pipeline(1).override({"policy.device": "cuda", "engine_workers": "3"})
    placed = place_workers(built, manager := ResourceManager())
    names = [p.worker for p in (*placed.engines, *placed.training, *placed.evaluation)]
    engines = [f"engine-gpu-{index}" for index in range(3)]
    assert names == [*engines, "sliding-gpu-0", "trainer-gpu-0", "evaluator-0"]
    (trainer,), (evaluator,) = placed.training, placed.evaluation
    assert (trainer.devices, placed.engines[0].devices) == (0.5, 0.5), "four share two GPUs"
    assert (evaluator.group, evaluator.shares) == (placed.engines[0].group, True)
    manager.release([placed.engines[0], trainer])
