"""Four families of tasks in one run: a game, mathematics with Python, a shop, repairs of a package.

    rollart run pipelines/world.py
    rollart query RUN "SELECT domain, outcome, count(*) AS n, avg(reward) AS reward FROM
        trajectories GROUP BY domain, outcome"
    rollart query RUN "SELECT domain, count(*) AS boxes, sum(execs) AS commands FROM sandboxes
        GROUP BY domain"

Programs of the policy and the tests of its repairs run in boxes. A policy this small only shows
that the parts work together; `-s policy.path=/path/to/model -s policy.engine=vllm` takes one that
was trained to call tools. Needs bubblewrap and `rollart-flow[swe]`.
"""

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import MathWithPython, Shop, Sokoban, SweSample

policy = Policy.tiny(max_context=4096)
prompts = tasks(
    Sokoban(size=5, boxes=1, max_turns=4),
    MathWithPython("story", calls=2, max_turns=3),
    Shop(products=50, tools=True, max_turns=4),
    SweSample(max_turns=2),
    group_size=4,
)
own = {"swe_sample": {"step_timeout_s": 120, "trajectory_timeout_s": 600}}
trajectories = rollout(prompts, policy, max_tokens=32, max_concurrent=8, by_domain=own)
batches = buffer(reward(trajectories), batch_size=16, alpha=1)
pipeline = Pipeline("world", train(batches, policy, grpo(), steps=3))
