"""A small web shop: search, open a product, choose its options, buy.

    rollart run pipelines/shop.py --executor inline
    rollart query RUN "SELECT avg(reward) AS reward FROM trajectories GROUP BY policy_version_start"

The reward is the share of the customer's wishes that the purchase fulfils, so that it rises long
before a purchase fits in everything. `Shop()` has 1,000 products and full pages, for
a pretrained policy; `Shop(tools=True)` is the same shop for one that calls tools.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Shop
from rollart_flow.trainers.optimizer import adamw

shop = Shop(products=3, goals=2, brief=True, held_out_fraction=0.0, max_turns=8)
policy = Policy.tiny(words=shop.words(), warm_start=60)
trajectories = rollout(tasks(shop, group_size=8), policy, max_tokens=8, max_concurrent=32)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=80, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("shop", steps, evaluate(policy, shop, every=20, episodes=6, max_tokens=8))
