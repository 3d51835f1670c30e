"""A reward of your own: a rule decides, and a small bonus for short answers can never outweigh it.

    rollart run pipelines/own_reward.py
    rollart query RUN "SELECT reward, reward_parts FROM trajectories LIMIT 5"

A reward is a function of a finished `Trajectory`. Each part of a composed reward is stored beside
the sum, in `reward_parts`. A plain function runs in a process of its own, so that one that hangs is
ended at `timeout_s` and delays no other trajectory.
"""

import json

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.envs.arithmetic import solve
from rollart_flow.rewards import Part, compose
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.types import Trajectory


def right(trajectory: Trajectory) -> float:
    """Return 1 if the answer is exactly the result, without anything around it."""
    problem = json.loads(trajectory.task)["problem"]
    return float(trajectory.turns[-1].action == str(solve(problem)))


def brevity(trajectory: Trajectory) -> float:
    """Return 1 for an empty answer and less for each generated token."""
    return 1.0 / (1 + sum(trajectory.action_mask))


numbers = Arithmetic(ops=("%",), right=(2,))
policy = Policy.tiny(warm_start=20)
trajectories = rollout(tasks(numbers, group_size=8), policy, max_tokens=4)
scored = reward(trajectories, compose(right, Part("brevity", brevity, weight=0.2)), timeout_s=5)
batches = buffer(scored, batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=30, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("own-reward", steps, evaluate(policy, numbers, every=10, max_tokens=4))
