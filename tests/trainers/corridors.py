"""Corridors: a domain for format warm starts, and one that goes wrong; light, for processes."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.errors import EnvironmentFailedError
from rollart_flow.types import Split, Task

ACTIONS = ("left", "down", "up")
"""Three of the four words that a tiny policy's tokenizer knows: `right` is never shown."""


class Corridor(Environment):
    """Shows its seed's last digit and the turn; ends after as many turns as the task says."""

    inline = True
    version = "corridor/1"

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self._left = int(task)
        self._seed = seed % 10
        return f"turn {self._seed} {self._left}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if action not in ACTIONS:
            raise EnvironmentFailedError(f"corridor: {action!r} is no action")
        self._left -= 1
        return f"turn {self._seed} {self._left}", 0.0, self._left == 0, False, {}


@dataclass(frozen=True)
class Corridors(Domain):
    """Corridors of 1 to 3 turns."""

    name: ClassVar[str] = "corridors"
    environment: ClassVar[type[Environment]] = Corridor
    max_turns: int = 3
    fails: bool = False

    def make(self) -> Environment:
        return Corridor()

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        random = Random(seed)
        return (Task(f"corridors/{n}", self.name, str(random.randint(1, 3))) for n in count())

    def example_action(self, task: Task, random: Random) -> str:
        return "crash" if self.fails else random.choice(ACTIONS)


class Awkward(Corridor):
    """Goes wrong once, in the way that its task says, and tells who it was."""

    inline = False

    def __init__(self, wrong: str, place: str) -> None:
        self._wrong = wrong
        self._once = Path(place)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if not self._once.exists():
            self._once.write_text(str(os.getpid()))
            WRONG[self._wrong]()
        return super().step(action)


def hang() -> None:
    threading.Event().wait()


def fail() -> None:
    raise ValueError("the corridor\nis closed")


def crash() -> None:
    os._exit(3)


WRONG: dict[str, Callable[[], None]] = {
    "hang": hang,
    "fail": fail,
    "crash": crash,
    "nothing": lambda: None,
}


@dataclass(frozen=True)
class AwkwardCorridors(Corridors):
    """Corridors of that kind."""

    wrong: str = "nothing"
    place: str = ""

    def make(self) -> Environment:
        if self.wrong == "hang for ever":
            hang()
        return Awkward(self.wrong, self.place)


class Mute(Corridors):
    """A domain that does not say what an action looks like."""

    name: ClassVar[str] = "mute"
    example_action = Domain.example_action
