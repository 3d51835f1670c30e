"""Two classes of hardware: each domain's tokens come from the class that suits it.

    ray start --head --resources '{"H800": 2, "H20": 1}'    # two kinds of nodes, played by one
    rollart run pipelines/two_classes.py --address auto
    rollart query RUN "SELECT worker, role, requested, granted FROM bindings"

FrozenLake has many short turns, so that it reads more than it writes: H800. Arithmetic goes to H20
(ROLLART section 3, R1). A class is a custom resource of Ray. On a machine that has neither, the
workers fall back to CPUs, and `events` has a row of kind `fallback` for each.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=20)
prompts = tasks(FrozenLake(size=4, brief=True), Arithmetic(), group_size=8)
affinity = {"frozenlake": "H800", "default": "H20"}
trajectories = rollout(prompts, policy, max_tokens=4, hw_affinity=affinity)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
steps = train(batches, policy, grpo(), steps=20, optimizer=adamw(lr=1e-3))
pipeline = Pipeline("two-classes", steps)
