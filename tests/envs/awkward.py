"""Environments that go wrong, each in its own way; they run in real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.types import Split, Task


class AwkwardEnvironment(Environment):
    """Does what the action says, so that one class shows every way to fail."""

    version = "awkward/1"

    def __init__(self, greeting: str, answers: tuple[Any, ...]) -> None:
        self.greeting = greeting
        self.answers = answers
        self.steps = 0

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        if task == "raise":
            raise ValueError("no such level\nas 'raise'")
        if task == "hang":
            while True:
                pass
        self.steps = 0
        return f"{self.greeting} {seed} {task}", {"pid": os.getpid()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        self.steps += 1
        if action == "exit":
            os._exit(3)
        if action == "print":
            print("this belongs to no answer")
            sys.stdout.flush()
        if action == "nonsense":
            answer: Any = self.answers
            return tuple(answer)
        if action == "child":
            child = subprocess.Popen(["sleep", "600"])
            return "", 0.0, False, False, {"child": child.pid}
        return action, float(self.steps), action == "end", False, {"success": action == "end"}

    def close(self) -> None:
        if self.greeting == "bad":
            raise OSError("cannot close")


@dataclass(frozen=True)
class Awkward(Domain):
    """Makes them."""

    name: ClassVar[str] = "awkward"
    environment: ClassVar[type[Environment]] = AwkwardEnvironment

    greeting: str = "hello"
    answers: tuple[Any, ...] = ()

    def make(self) -> Environment:
        return AwkwardEnvironment(self.greeting, self.answers)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter(())


class AwkwardInlineEnvironment(AwkwardEnvironment):
    """The same in the event loop."""

    inline = True


@dataclass(frozen=True)
class AwkwardInline(Awkward):
    """Makes those."""

    environment: ClassVar[type[Environment]] = AwkwardInlineEnvironment

    def make(self) -> Environment:
        return AwkwardInlineEnvironment(self.greeting, self.answers)
