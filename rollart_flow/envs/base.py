"""Base classes of environments and of the domains that create them.

`Environment` is Gymnasium's protocol with text or messages in place of arrays. `Domain` is the
frozen setting that a pipeline file names; it creates environments and tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from rollart_flow.types import Observation, Split, Task, Tool
from rollart_flow.types.branching import StepObservation

Info = Mapping[str, object]


class Environment(ABC):
    """A synchronous environment. `info["success"]`, if present, says whether it was solved."""

    inline: ClassVar[bool] = False
    """True: reset and step take well under a millisecond and cannot hang, so that they may run in
    the event loop. False: the environment runs in a process that is killed at its timeout."""

    version: ClassVar[str] = "1"
    """Name and version, stored with each trajectory; replay reports a change of it."""

    converses: ClassVar[bool] = False
    """Whether `step` takes an `Action`, with its thinking and tool calls, instead of its text."""

    tools: Sequence[Tool] = ()
    """Tools that the policy may call, read after each reset; for one that converses."""

    @abstractmethod
    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Start an episode of a task (JSON payload); return (observation, info)."""

    @abstractmethod
    def step(self, action: Any) -> tuple[StepObservation, float, bool, bool, Info]:
        """Apply one action; return (observation, reward, terminated, truncated, info).

        The action is the text of the policy, or an `Action` if the environment converses. In place
        of an observation, `SubAgent`, `Return` or `Retry` of `types.branching` make the attempt
        branch.
        """

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Release the environment's resources."""


class Domain(ABC):
    """A task domain: where its tasks come from and which environment runs them.

    Subclasses are frozen dataclasses; their fields are the domain's settings.
    """

    name: ClassVar[str]
    """Key of hardware affinity and of the `domain` column."""

    environment: ClassVar[type[Environment]]
    """Class that `make` returns; it declares `inline` and `version`."""

    max_turns: int = 1
    """Turns after which a trajectory is truncated; a field where it is a setting."""

    context: str | None = None
    """Context policy of its episodes, such as "cut"; a field where it is a setting."""
    shows_images: bool = False
    """Whether observations have images, which not every engine and model takes; a field or property
    where it is a setting."""

    environ: tuple[str, ...] = ()
    """Environment variables that the environment's process gets besides the usual ones and those of
    the domain's secrets; a field where it is a setting."""

    def make(self) -> Environment:
        """Return a new environment; override it if the constructor takes arguments."""
        return self.environment()

    @abstractmethod
    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Return the tasks of a split: endless and shuffled for training, finite for evaluation.

        The same seed gives the same sequence, so that a cursor into it can be resumed.
        """

    def held_out(self, seed: int) -> Iterator[Task]:
        """Return tasks that training never uses, for `success/held_out`; none by default."""
        return iter(())

    def example_action(self, task: Task, random: Random) -> str:
        """Return a well-formed, otherwise random action for a format warm start."""
        raise TypeError(f"domain {self.name!r} has no example actions, so no format warm start")
