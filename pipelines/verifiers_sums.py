"""A taskset of verifiers, in a process of the virtual environment that has its package.

    python -m venv ~/environments/verifiers
    ~/environments/verifiers/bin/pip install verifiers==0.4.0
    rollart run pipelines/verifiers_sums.py

`VERIFIERS_PYTHON` names the interpreter if it is elsewhere. The taskset is one of your own;
`Verifiers("gsm8k", ...)` takes one that is installed. The reward is the sum of its two: one for a
right sum, and half of the share of the reply that is digits, which rises within 20 steps. Eight of
the 40 tasks are held out.
"""

import os
from pathlib import Path

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Verifiers
from rollart_flow.trainers.optimizer import adamw

PYTHON = os.environ.get("VERIFIERS_PYTHON", "~/environments/verifiers/bin/python")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
TASKSET = CACHE / "rollart_flow" / "verifiers" / "rollart_sums.py"
SUMS = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    numbers: list[int]

class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(sum(self.data.numbers)))

    @vf.reward(weight=0.5)
    async def digits(self, trace: vf.Trace) -> float:
        reply = trace.last_reply or " "
        return sum(letter.isdigit() for letter in reply) / len(reply)

class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for n in range(40):
            data = SumData(prompt=f"Add {n % 5} and {n // 5}.", numbers=[n % 5, n // 5])
            yield SumTask(data, self.config.task)

__all__ = ["SumTaskset"]
"""

TASKSET.parent.mkdir(parents=True, exist_ok=True)
TASKSET.write_text(SUMS)
sums = Verifiers(
    str(TASKSET), name="sums", python=PYTHON, count=40, held_out_count=8, max_turns=1,
    success="right",
)  # fmt: skip
policy = Policy.tiny()
trajectories = rollout(tasks(sums, group_size=8), policy, max_tokens=2, max_concurrent=4)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=20, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("verifiers-sums", steps, evaluate(policy, sums, every=10, max_tokens=2))
