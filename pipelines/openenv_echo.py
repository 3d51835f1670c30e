"""An environment at an OpenEnv server: the one that `openenv init` writes, which echoes.

    openenv init echo && cd echo && python -m server.app    # in another shell
    OPENENV_URL=ws://127.0.0.1:8000/ws rollart run pipelines/openenv_echo.py

It needs the extra `remote`, and a server with `max_concurrent_envs` of 16 or more: an episode has
a connection of its own, in the event loop of the rollout worker, and no process. The reward is a
tenth for each letter of the message up to one, so that it rises as the messages get longer.
"""

import os

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import OpenEnv
from rollart_flow.trainers.optimizer import adamw

URL = os.environ.get("OPENENV_URL", "ws://127.0.0.1:8000/ws")

echo = OpenEnv(URL, name="echo", action="message", show="echoed_message", max_turns=1)
policy = Policy.tiny()
trajectories = rollout(tasks(echo, group_size=8), policy, max_tokens=10, max_concurrent=16)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
steps = train(batches, policy, grpo(), steps=30, minibatches=2, optimizer=adamw(lr=2e-3))
pipeline = Pipeline("openenv-echo", steps)
