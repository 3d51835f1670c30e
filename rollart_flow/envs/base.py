"""Environments and the domains that make them. One variant, one short file beside this one.

`Environment` is Gymnasium's protocol with text for arrays. `Domain` is the frozen setting that a
pipeline file names: it makes environments and tasks, and importing it loads neither.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from random import Random
from typing import ClassVar

from rollart_flow.types import Split, Task

Info = Mapping[str, object]


class Environment(ABC):
    """One synchronous environment. `info["success"]`, where given, says whether it was solved."""

    inline: ClassVar[bool] = False
    """True: reset and step take well under a millisecond and cannot hang, so that they may run in
    the event loop. False: the environment runs in a process that is killed at its timeout."""

    version: ClassVar[str]
    """Name and version, stored with each trajectory."""

    @abstractmethod
    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Start an episode of a task (JSON payload); (observation, info)."""

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """(observation, reward, terminated, truncated, info)."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release what is held."""


class Domain(ABC):
    """A task domain: where its tasks come from and which environment runs them.

    Subclasses are frozen dataclasses; their fields are the domain's settings.
    """

    name: ClassVar[str]
    """Key of hardware affinity and of the `domain` column."""

    environment: ClassVar[type[Environment]]
    """Class of what `make` returns: tells `inline` and `version` without making one."""

    max_turns: int = 1
    """Turns after which a trajectory is truncated; a field where it is a setting."""

    @abstractmethod
    def make(self) -> Environment:
        """A new environment."""

    @abstractmethod
    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Tasks of a split: endless and shuffled for training, finite for evaluation.

        The same seed gives the same sequence, so that a cursor into it can be resumed.
        """

    def held_out(self, seed: int) -> Iterator[Task]:
        """Tasks that training never sees, evaluated as `success/held_out`; none by default."""
        return iter(())

    def example_action(self, task: Task, random: Random) -> str:
        """A well-formed, otherwise random action; what a format warm start teaches."""
        raise TypeError(f"domain {self.name!r} has no example actions, so no format warm start")
