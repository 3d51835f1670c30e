"""A remote reward: the function runs in a process of its own, here behind HTTP on this machine.

    rollart reward serve pipelines.remote_reward:score --port 8080    # in another shell
    rollart run pipelines/remote_reward.py

A URL takes the place of the function: `https://` for a function platform, `lambda://name` for AWS,
`serve://app` for a Ray Serve app that scales to zero (ROLLART section 6.4). Calls are retried and
limited; a trajectory whose call gets no answer within `timeout_s` ends as `timed_out`.
"""

import json
import os
from collections.abc import Mapping

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.envs.arithmetic import solve
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.types import Trajectory

URL = os.environ.get("REWARD_URL", "http://127.0.0.1:8080")


def score(trajectory: Trajectory) -> tuple[float, Mapping[str, float]]:
    """Return 1 for the right answer; the parts say which process of the endpoint computed it."""
    problem = json.loads(trajectory.task)["problem"]
    right = float(trajectory.turns[-1].action == str(solve(problem)))
    return right, {"right": right, "process": float(os.getpid())}


policy = Policy.tiny(warm_start=20)
prompts = tasks(Arithmetic(ops=("%",), right=(2,)), group_size=8)
scored = reward(rollout(prompts, policy, max_tokens=4), URL, timeout_s=10, max_concurrent=16)
batches = buffer(scored, batch_size=64, alpha=1)
steps = train(batches, policy, grpo(), steps=20, optimizer=adamw(lr=2e-3))
pipeline = Pipeline("remote-reward", steps)
