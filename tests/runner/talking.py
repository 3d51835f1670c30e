"""A talking environment in a pipeline's text, for runs of conversations.

A pipeline begins with `TALKING` and names the domain `Talking(turns, max_turns)`.
"""

TALKING = """
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment, ToolEnvironment, tool
from rollart_flow.types import Task
from rollart_flow.types.messages import system, user


class Talk(ToolEnvironment):
    inline = True

    def __init__(self, turns):
        self.turns = turns

    def reset(self, seed, task):
        self.left = self.turns
        return [system("Be brief."), user(task)], {}

    @tool
    def double(self, number: int) -> int:
        "Double a number."
        return 2 * number

    def answer(self, text):
        self.left -= 1
        return [user("Go on.")], len(text) % 3 / 2, not self.left, False, {}


@dataclass(frozen=True)
class Talking(Domain):
    turns: int
    max_turns: int
    name: ClassVar[str] = "talking"
    environment: ClassVar[type[Environment]] = Talk

    def make(self):
        return Talk(self.turns)

    def tasks(self, split, seed):
        for number in count():
            yield Task(f"t{number}", self.name, f"Twice {number % 10}?")


"""
