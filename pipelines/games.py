"""A puzzle of many turns, each level another one: the policy pushes a box onto a goal.

    rollart run pipelines/games.py

Levels can be solved in the turns that there are. The policy learns the eight levels of training:
`success_sampled` goes from 0.28 to 0.36, 0.44 and 0.52. On held-out levels it stays at 0.2, since
so few do not teach a rule; 1000 levels take more than these 60 steps.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Sokoban
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=30, max_context=160)
sokoban = Sokoban(size=5, boxes=1, max_turns=4, train_tasks=8)
trajectories = rollout(tasks(sokoban, group_size=8), policy, max_tokens=6, temperature=1.25)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
loss = grpo(clip_high=0.5)
steps = train(batches, policy, loss, steps=60, minibatches=2, epochs=2, optimizer=adamw(lr=2e-3))
scores = evaluate(policy, sokoban, every=20, max_tokens=6)
pipeline = Pipeline("games", steps, scores)
