"""A critic: PPO, whose advantages give each token of an episode its own credit.

    rollart run pipelines/critic.py
    rollart query RUN "SELECT step, loss, value_loss FROM steps ORDER BY step"

The critic is a value head on the policy. It is trained with it, lies in the checkpoints and is
never published to the engines. `value_loss` of `steps` says how far its values are from `targets`
of `batches`.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import ppo
from rollart_flow.envs import Arithmetic
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=20)
numbers = Arithmetic(ops=("%",), right=(2,))
trajectories = rollout(tasks(numbers, group_size=8), policy, max_tokens=4)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
algorithm = ppo(gamma=0.98, lam=0.95, entropy=0.01)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, algorithm, steps=30, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("critic", steps, evaluate(policy, numbers, every=10, max_tokens=4))
