"""A fork with another recipe: from step 44 of a run on, CISPO takes the place of GRPO.

    rollart run pipelines/two_domains.py --name mine
    rollart fork mine --step 44 pipelines/fork_recipe.py --name cispo
    rollart runs

The fork starts from version 44 of its parent and names it in `run.json`. It is a run of its own:
the parent is only read. Tasks, policy and sampling stay, so that the two curves can be compared.
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import cispo
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=40)
lake = FrozenLake(size=4, brief=True)
numbers = Arithmetic(digits=2, ops=("%",), right=(2,), format_penalty=0.5)
prompts = tasks(lake, numbers, group_size=8, weights={"arithmetic": 1.3})
trajectories = rollout(prompts, policy, max_tokens=8, max_concurrent=48, temperature=1.25)
batches = buffer(reward(trajectories), batch_size=128, alpha=1)
loss = cispo(aggregation="domain", kl=0.03)
optimizer = adamw(lr=1e-3, schedule="linear", decay_steps=110, final_lr=3e-4)
steps = train(batches, policy, loss, steps=110, minibatches=4, epochs=2, optimizer=optimizer)
scores = evaluate(policy, lake, numbers, every=22, episodes=64, max_tokens=8)
pipeline = Pipeline("fork-recipe", steps, scores)
