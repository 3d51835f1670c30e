"""Questions from a table: each row of a file is a task, and a rule checks the answer.

    rollart run pipelines/question_table.py
    rollart query RUN "SELECT task_id, avg(reward) AS reward FROM trajectories GROUP BY task_id"

The file writes its table so that it runs by itself; yours lies on a disk already, as Parquet,
JSONL, CSV or a data set of Hugging Face, and may be judged by `math_equal()` or `code_tests()`. A
list of tasks or a `ray.data.Dataset` with task_id, domain and payload may be a source too.
"""

import json
import os
from pathlib import Path
from tempfile import gettempdir

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Questions
from rollart_flow.rewards import exact
from rollart_flow.trainers.optimizer import adamw

COLORS = {"grass": "green", "blood": "red", "lemon": "yellow", "leaf": "green", "brick": "red"}

table = Path(gettempdir()) / f"rollart-colors-{os.getuid()}.jsonl"
rows = [{"thing": thing, "color": color} for thing, color in COLORS.items()]
table.write_text("\n".join(map(json.dumps, rows)))
questions = Questions(
    str(table), prompt="thing", answer="color", task_id="thing", held_out_fraction=0.0
)

policy = Policy.tiny(words=sorted(set(COLORS.values())), warm_start=20)
trajectories = rollout(tasks(questions, group_size=8), policy, max_tokens=4)
batches = buffer(reward(trajectories, exact()), batch_size=40, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=30, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("questions", steps)
