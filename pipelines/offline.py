"""Rejection sampling: a fresh policy learns from the successes that another run has stored.

Nothing is rolled out but for evaluation. The run `two-domains-1` is one of `two_domains.py`, which
may have ended early: of each group, the best attempts are imitated, if they were solved.

    rollart run pipelines/two_domains.py -s steps=20
    rollart run pipelines/offline.py
"""

import polars as pl

from rollart_flow import Pipeline, Policy, evaluate, stored, train
from rollart_flow.algorithms import sft
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny()
lake = FrozenLake(size=4, brief=True)
numbers = Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5)
best = stored("two-domains-1", filter=pl.col("reward") >= 1, best=2, batch_size=128)
steps = train(best, policy, sft(aggregation="domain"), steps=240, optimizer=adamw(lr=1e-3))
scores = evaluate(policy, lake, numbers, every=80, episodes=64, max_tokens=8)
pipeline = Pipeline("offline", steps, scores)
