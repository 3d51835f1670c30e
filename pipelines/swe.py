"""Repairs of a package: faults that its own tests notice, an agent with bash, and a verifier.

    rollart run pipelines/swe.py

It shows the parts: each attempt has a box, its diff is judged in a fresh one, and the verdict on
each test is a row. A policy this small repairs nothing: give a model that was trained to call
tools, and `SweMutants(sources=(...))` with source archives of real packages. Needs bubblewrap and
`rollart-flow[swe]`.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import SweSample

policy = Policy.tiny(max_context=4096)
prompts = tasks(SweSample(max_turns=3), group_size=4)
trajectories = rollout(
    prompts, policy, max_tokens=8, max_concurrent=2, step_timeout_s=120, trajectory_timeout_s=600
)
batches = buffer(reward(trajectories), batch_size=16, alpha=1)
pipeline = Pipeline("swe", train(batches, policy, grpo(), steps=3))
