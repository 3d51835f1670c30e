"""GRPO on two task domains, at most one policy version stale."""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=40)  # 40 steps that teach how an action is written, not which
lake = FrozenLake(size=4, brief=True)
numbers = Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5)
prompts = tasks(lake, numbers, group_size=8, weights={"arithmetic": 1.3})
affinity = {"frozenlake": "H800", "default": "H20"}
trajectories = rollout(prompts, policy, hw_affinity=affinity, max_tokens=8, max_concurrent=48)
scored = reward(trajectories)
batches = buffer(scored, batch_size=128, alpha=1, commit_ms=100)
each_domain = grpo(aggregation="domain", kl=0.02, clip_high=0.5)  # none drowns another
steps = train(batches, policy, each_domain, steps=88, optimizer=adamw(lr=1e-3), minibatches=4)
scores = evaluate(policy, lake, numbers, every=22, episodes=64, max_tokens=8)
pipeline = Pipeline("two-domains", steps, scores)
