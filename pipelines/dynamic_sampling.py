"""Dynamic sampling: groups whose attempts all score the same teach nothing and are replaced.

    rollart run pipelines/dynamic_sampling.py
    rollart query RUN "SELECT reason, count(*) AS n FROM events GROUP BY reason"

`varied()` refuses such a group once it is complete (DAPO, 2503.14476); another one is admitted, and
`zero_variance_groups` of `steps` stays 0. The curriculum admits a task less often once it was
solved by nearly all of its last attempts (ROLL Flash section 5.1.1).
"""

from rollart_flow import Pipeline, Policy, buffer, evaluate, filter, reward, rollout, tasks, train
from rollart_flow.algorithms import Curriculum, dapo
from rollart_flow.algorithms.filters import varied
from rollart_flow.envs import Arithmetic
from rollart_flow.trainers.optimizer import adamw

policy = Policy.tiny(warm_start=20)
numbers = Arithmetic(ops=("%",), right=(2,))
prompts = tasks(numbers, group_size=8, curriculum=Curriculum(easy=0.1))
scored = reward(rollout(prompts, policy, max_tokens=4, extra_groups=2))
batches = buffer(filter(scored, varied()), batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, dapo(), steps=30, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("dynamic", steps, evaluate(policy, numbers, every=10, max_tokens=4))
