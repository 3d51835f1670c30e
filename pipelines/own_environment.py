"""An environment of your own, the smallest: one question, one answer, whether right or wrong.

    rollart run pipelines/own_environment.py

The policy learns whether a digit is odd or even: `success_sampled` starts near 0.5 and ends near 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from rollart_flow import Pipeline, Policy, buffer, evaluate, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment
from rollart_flow.envs.base import Info
from rollart_flow.trainers.optimizer import adamw
from rollart_flow.types import Split, Task


class ParityEnvironment(Environment):
    """Shows a digit; the right action is "odd" or "even"."""

    inline = True  # it never blocks, so it needs no process of its own

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Show the digit that is the task's payload."""
        self.answer = "odd" if int(task) % 2 else "even"
        return task, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Give 1 for the right answer; the episode ends with any answer."""
        right = action == self.answer
        return "", float(right), True, False, {"success": right}


@dataclass(frozen=True)
class Parity(Domain):
    """Ten questions, one for each digit."""

    name = "parity"
    environment = ParityEnvironment

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The ten questions: again and again for training, once for evaluation."""
        for n in count() if split is Split.TRAIN else range(10):
            yield Task(f"parity/{n % 10}", self.name, str(n % 10))

    def example_action(self, task: Task, random: Random) -> str:
        """An answer, right or wrong: the warm start only teaches how an answer is written."""
        return random.choice(("odd", "even"))


policy = Policy.tiny(words=("odd", "even"), warm_start=20)
trajectories = rollout(tasks(Parity(), group_size=8), policy, max_tokens=4)
batches = buffer(reward(trajectories), batch_size=64, alpha=1)
optimizer = adamw(lr=2e-3)
steps = train(batches, policy, grpo(), steps=30, minibatches=2, epochs=2, optimizer=optimizer)
pipeline = Pipeline("parity", steps, evaluate(policy, Parity(), every=10, max_tokens=4))
