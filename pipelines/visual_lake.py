"""A policy that takes images: it walks over frozen lakes that it is shown as pictures.

    rollart run pipelines/visual_lake.py

Each frame is the picture that Gymnasium draws, and every lake is another random one. The policy
learns to reach the goal: `success_sampled` goes from 0.25 to 0.88, which is what one and the same
way reaches on the lakes of the evaluation. Only a policy that reads the picture can do better.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(images=True, engine="transformers", warm_start=20, max_context=96)
lake = FrozenLake(visual=True, tile_pixels=8, size=2, max_turns=3, random_maps=True)
trajectories = rollout(tasks(lake, group_size=8), policy, max_tokens=2, temperature=1.25)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
loss = grpo(clip_high=0.5)
steps = train(batches, policy, loss, steps=60, minibatches=2, epochs=2, optimizer=adamw(lr=1e-3))
scores = evaluate(policy, lake, every=15, episodes=64, max_tokens=2)
pipeline = Pipeline("visual-lake", steps, scores)
