"""An unchanged program repairs a package: the policy answers its calls, and is trained on them.

    rollart run pipelines/agent_swe.py
    rollart agents install mini-swe-agent
    rollart run pipelines/agent_swe.py -s agent=mini-swe-agent

The program runs in a box without a network and asks a gateway on its own loopback; what it leaves
is judged in a fresh box. A policy this small calls no tool: give a model that was trained to, and
`SweMutants(sources=(...))` with source archives of real packages. Needs bubblewrap and
`rollart-flow[swe]`.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import SweSample

policy = Policy.tiny(max_context=16384)
prompts = tasks(SweSample(), group_size=4)
trajectories = rollout(prompts, policy, agent="bash", max_tokens=8, max_concurrent=4)
batches = buffer(reward(trajectories), batch_size=16, alpha=1)
pipeline = Pipeline("agent_swe", train(batches, policy, grpo(), steps=3))
