"""A pipeline for the tests of pipelines, in the smallest form that has every node."""

from typing import Any

import polars as pl

from rollart_flow import Pipeline, Policy, buffer, evaluate, filter, reward, rollout, tasks, train
from rollart_flow.algorithms import Algorithm, grpo
from rollart_flow.envs import Arithmetic, FrozenLake

POLICY = Policy.tiny()
LAKE, SUMS = FrozenLake(size=4), Arithmetic(digits=2)


def two_domains(algorithm: Algorithm | None = None, **of_buffer: Any) -> Pipeline:
    """Every node once; keywords go to the buffer."""
    prompts = tasks(LAKE, SUMS, group_size=8)
    attempts = rollout(prompts, POLICY, hw_affinity={"frozenlake": "H800", "default": "H20"})
    kept = filter(reward(attempts), pl.col("reward") > -1, name="no_nonsense")
    batches = buffer(kept, **{"batch_size": 64, **of_buffer})
    scores = evaluate(POLICY, LAKE, SUMS, every=10)
    steps = train(batches, POLICY, algorithm or grpo(), steps=60)
    return Pipeline("two-domains", steps, scores)
