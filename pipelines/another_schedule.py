"""Another schedule: how rollout and training interleave is one argument of `buffer`.

    rollart run pipelines/another_schedule.py
    rollart run pipelines/another_schedule.py -s schedule=one_off
    rollart run pipelines/another_schedule.py -s "schedule=flash(1)"
    rollart query RUN "SELECT staleness, lag, count(*) AS n FROM batches GROUP BY staleness, lag"

`areal(2)` bounds how old the policy may be when an attempt starts, and aborts none for its age.
`rollart(alpha)`, the default, bounds each trajectory's staleness, by the version that the engines
serve when its batch is formed, and `flash(alpha)` its lag, by the version that is trained. A
schedule is data, so that a variant is a changed field: here batches take tasks in the order of
their source.
"""

from dataclasses import replace

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.control.schedule.schedules import areal
from rollart_flow.control.schedule.selection import in_order
from rollart_flow.envs import Arithmetic, FrozenLake
from rollart_flow.trainers.optimizer import adamw

schedule = replace(areal(2), name="areal-in-order", selection=in_order)
policy = Policy.tiny(warm_start=20)
prompts = tasks(FrozenLake(size=4, brief=True), Arithmetic(), group_size=8)
scored = reward(rollout(prompts, policy, max_tokens=4))
batches = buffer(scored, batch_size=64, schedule=schedule)
steps = train(batches, policy, grpo(), steps=20, optimizer=adamw(lr=1e-3))
pipeline = Pipeline("another-schedule", steps)
