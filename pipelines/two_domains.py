"""GRPO on two task domains, at most one policy version stale."""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=40)  # 40 steps that teach how an action is written, not which
lake = FrozenLake(size=4, brief=True)
numbers = Arithmetic(digits=2, ops=("%",), right=(2,), held_out_fraction=0.25)
prompts = tasks(lake, numbers, group_size=8)
trajectories = rollout(
    prompts, policy, hw_affinity={"frozenlake": "H800", "default": "H20"}, max_tokens=8
)
scored = reward(trajectories)
batches = buffer(scored, batch_size=128, alpha=1, commit_ms=200)
each_domain = grpo(aggregation="domain")  # or else long episodes drown the short answers
steps = train(batches, policy, each_domain, steps=70, optimizer=adamw(lr=1e-3), minibatches=4)
scores = evaluate(policy, lake, numbers, every=14, episodes=96, max_tokens=8)
pipeline = Pipeline("two-domains", steps, scores)
