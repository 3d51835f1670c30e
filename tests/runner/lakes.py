"""A pipeline whose environment shows images, and one that learns from its run: two steps each."""

LAKES = """
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import FrozenLake

policy = {policy}
lake = FrozenLake(visual=True, tile_pixels=8, size=2, max_turns=2, random_maps=True)
attempts = rollout(tasks(lake, group_size=4), policy, max_tokens=2)


def varied(trajectory):
    return float(sum(trajectory.token_ids) % 5)


scored = reward(attempts, varied)
batches = buffer(scored, batch_size=8, alpha=1)
steps = train(batches, policy, grpo(), steps=2, checkpoint_every=2{train})
pipeline = Pipeline("sees", steps)
"""
FRESH = "Policy.tiny(images=True, engine='transformers', hidden=32, heads=2, max_context=96)"


def lakes(policy: str = FRESH, train: str = "") -> str:
    """Text of the pipeline: a policy, and further arguments of `train`."""
    return LAKES.format(policy=policy, train=train)


DRAWS = """
from rollart_flow import Pipeline, Policy, stored, train
from rollart_flow.algorithms import grpo

policy = {policy}
source = stored("{source}", batch_size=8)
steps = train(source, policy, grpo(), steps=2, checkpoint_every=2)
pipeline = Pipeline("looks", steps)
"""


def draws(source: str, policy: str = FRESH) -> str:
    """Text of a pipeline that learns from a run of `lakes`."""
    return DRAWS.format(source=source, policy=policy)
