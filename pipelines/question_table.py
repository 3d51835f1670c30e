"""Questions from a table: each row of a Parquet file is a task, and a rule checks the answer.

    rollart run pipelines/question_table.py
    rollart query RUN "SELECT task_id, avg(reward) AS reward FROM trajectories GROUP BY task_id"

The file writes its table so that it runs by itself; yours lies on a disk or in S3 already. A
`ray.data.Dataset` with the columns task_id, domain and payload may take the place of the list.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from random import Random
from tempfile import NamedTemporaryFile

import polars as pl

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment
from rollart_flow.envs.base import Info
from rollart_flow.rewards import exact
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.types import Split, Task

COLORS = {"grass": "green", "blood": "red", "lemon": "yellow", "leaf": "green", "brick": "red"}


class QuestionEnvironment(Environment):
    """Shows the question of a row and leaves the judgment to the reward."""

    inline = True

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        return json.loads(task)["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return "", 0.0, True, False, {}


@dataclass(frozen=True)
class Questions(Domain):
    """The domain that runs the rows; the warm start plays them with random colors."""

    name = "questions"
    environment = QuestionEnvironment

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return cycle(rows)

    def example_action(self, task: Task, random: Random) -> str:
        return random.choice(sorted(COLORS.values()))


with NamedTemporaryFile(suffix=".parquet") as file:
    pl.DataFrame({"question": [*COLORS], "answer": [*COLORS.values()]}).write_parquet(file.name)
    table = pl.read_parquet(file.name).to_dicts()
rows = [Task(row["question"], "questions", json.dumps(row)) for row in table]

policy = Policy.tiny(words=sorted(set(COLORS.values())), warm_start=20)
trajectories = rollout(tasks(rows, domains=[Questions()], group_size=8), policy, max_tokens=4)
batches = buffer(reward(trajectories, exact()), batch_size=40, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=30, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("questions", steps)
