"""Household tasks of ALFWorld: find a thing, heat it if that is asked for, and put it away.

    rollart run pipelines/alf_world.py

It shows that the tasks are well-formed: a policy this small only learns how a command is written
(`warm_start`), and reaches a goal by chance. `-s policy.path=/path/to/model -s policy.engine=vllm`
takes a model that can read. A reset takes a second, so that each process keeps its planner. 64 of
the houses are held out. Needs `rollart-flow[alfworld]`, whose planner takes minutes to build.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import AlfWorld

goals = ("pick_and_place_simple", "pick_heat_then_place_in_recep")
house = AlfWorld(goals=goals, places=3, things=2, commands=True, max_turns=8)
policy = Policy.tiny(max_context=4096, warm_start=10)
prompts = tasks(house, group_size=4)
trajectories = rollout(prompts, policy, max_tokens=24, max_concurrent=4, step_timeout_s=60)
batches = buffer(reward(trajectories), batch_size=16, alpha=1)
steps = train(batches, policy, grpo(), steps=10)
scores = evaluate(policy, house, every=10, episodes=8, max_tokens=24)
pipeline = Pipeline("alf-world", steps, scores)
