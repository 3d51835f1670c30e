"""An environment with tools and a sub-agent, whose conversation is longer than the context.

    rollart run pipelines/long_talk.py

`context="cut(keep=0.3)"` drops the oldest turns once a chain of tokens is long; the attempt goes on
in a new branch. A tiny policy seldom writes a call: give a model that was trained to call tools.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, ToolEnvironment, tool
from rollart_flow.envs.base import Info
from rollart_flow.types import Observation, Return, Split, SubAgent, Task
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import system, user


class StoreroomEnvironment(ToolEnvironment):
    """Asks for the number of crates again and again, and lets a sub-agent check every answer."""

    inline = True

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Say what is wanted."""
        self.crates, self.turn, self.checks = int(task), 0, False
        return [system("Count crates."), user("How many crates are there?")], {}

    @tool
    def crates_in(self, room: str) -> int:
        """Count the crates of a room.

        Args:
            room: name of the room.
        """
        return self.crates

    def answer(self, text: str) -> tuple[StepObservation, float, bool, bool, Info]:
        """Let a sub-agent check an answer, and tell the policy what it says."""
        self.checks = not self.checks
        if self.checks:
            return SubAgent([system("Say yes or no."), user(text)]), 0.0, False, False, {}
        self.turn += 1
        right = str(self.crates) in text
        return Return([user("Again?")]), float(right), self.turn == 6, False, {"success": right}


@dataclass(frozen=True)
class Storeroom(Domain):
    """Ten storerooms, each with its number of crates."""

    name = "storeroom"
    environment = StoreroomEnvironment
    max_turns: int = 16

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """The rooms, again and again for training."""
        for n in count() if split is Split.TRAIN else range(10):
            yield Task(f"storeroom/{n % 10}", self.name, str(n % 10))


policy = Policy.tiny(max_context=160)
prompts = tasks(Storeroom(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=8, context="cut(keep=0.3)")
batches = buffer(reward(trajectories), batch_size=16, alpha=1)
pipeline = Pipeline("long-talk", train(batches, policy, grpo(), steps=20))
