"""GRPO on two task domains, with a staleness of at most one policy version.

When a batch is formed, the engines serve at most one version more than started its trajectories.
The weights that the step trains are one version newer still: -s "schedule=flash(1)" counts from
them.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=40)  # 40 steps that teach how an action is written, not which
lake = FrozenLake(size=4, brief=True)
numbers = Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5)
prompts = tasks(lake, numbers, group_size=8, weights={"arithmetic": 1.3})
affinity = {"frozenlake": "H800", "default": "H20"}
trajectories = rollout(
    prompts, policy, hw_affinity=affinity, max_tokens=8, max_concurrent=48, temperature=1.25
)
batches = buffer(reward(trajectories), batch_size=128, alpha=1)
loss = grpo(aggregation="domain", kl=0.03, clip_high=0.5)  # no domain drowns the other
rate = adamw(lr=1e-3, schedule="linear", decay_steps=110, final_lr=3e-4)  # steadier at the end
steps = train(batches, policy, loss, steps=110, minibatches=4, epochs=2, optimizer=rate)
scores = evaluate(policy, lake, numbers, every=22, episodes=64, max_tokens=8)
pipeline = Pipeline("two-domains", steps, scores)
