"""Base classes of environments and of the domains that create them.

`Environment` is Gymnasium's protocol with text or messages in place of arrays. `Domain` is the
frozen setting that a pipeline file names; it creates environments and tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rollart_flow.errors import SettingsError
from rollart_flow.types import Action, Observation, Split, Task, Tool
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.verdicts import Judgement, TaskDigests

if TYPE_CHECKING:
    from rollart_flow.control.environment import AsyncEnvironment
    from rollart_flow.envs.workspace import Workspace
    from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
    from rollart_flow.sandbox.boxes import Boxes

Info = Mapping[str, object]


class Environment(ABC):
    """A synchronous environment. `info["success"]`, if present, says whether it was solved.

    A subclass may set `inline` (its calls take well under a millisecond, so that it needs no
    process), `version` (stored with each trajectory), `converses` (`step` takes an `Action` instead
    of text) and `tools`.
    """

    inline: ClassVar[bool] = False
    """True: reset and step take well under a millisecond and cannot hang, so that they may run in
    the event loop. False: the environment runs in a process that is killed at its timeout."""

    version: ClassVar[str] = "1"
    """Name and version, stored with each trajectory; replay reports a change of it."""

    converses: ClassVar[bool] = False
    """Whether `step` takes an `Action`, with its thinking and tool calls, instead of its text."""

    tools: Sequence[Tool] = ()
    """Tools that the policy may call, read after each reset; for one that converses."""

    _boxes: "Boxes | None" = None

    @property
    def boxes(self) -> "Boxes":
        """Source of boxes for code that a model wrote: the run's pool, or this process itself.

        Boxes are not for environments that are `inline`, whose steps must not wait.
        """
        if self._boxes is None:
            from rollart_flow.sandbox.boxes import LocalBoxes

            self._boxes = LocalBoxes()
        return self._boxes

    @boxes.setter
    def boxes(self, boxes: "Boxes") -> None:
        self._boxes = boxes

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


@dataclass(frozen=True, slots=True)
class EnvironmentProgram:
    """A program that runs an environment with the packages of another virtual environment.

    It answers the requests that `envs.child_handler` describes; "open" gets `settings`.
    """

    python: str
    """Path of the interpreter."""
    handler: str
    """`file.py:Class` of a callable from JSON to JSON; the file needs nothing of this library."""
    settings: Mapping[str, object]
    """JSON values."""


class Domain(ABC):
    """A task domain: where its tasks come from and which environment runs them.

    Subclasses are frozen dataclasses; their fields are the domain's settings. A subclass sets
    `name` (the column `domain`) and `environment` (a class), and defines `tasks`. It may set
    `max_turns` (1 by default), `context`, `shows_images`, `needs_admission` and `environ`, and
    define `make`, `held_out`, `example_action`, `solutions` and others.
    """

    name: ClassVar[str]
    """Key of hardware affinity and of the `domain` column; a field or property where a setting
    decides it, so that a pipeline may have several domains of one class."""

    environment: ClassVar[type[Environment]]
    """Class that `make` returns; it declares `inline` and `version`; a property where a setting
    decides it."""

    max_turns: int = 1
    """Turns after which a trajectory is truncated; a field where it is a setting."""

    context: str | None = None
    """Context policy of its episodes, such as "cut"; a field where it is a setting."""
    shows_images: bool = False
    """Whether observations have images, which not every engine and model takes; a field or property
    where it is a setting."""

    needs_admission: bool = False
    """Whether only tasks that `rollart tasks check` admitted are trained on, unless
    `tasks(admitted=...)` says otherwise; a field where it is a setting."""

    environ: tuple[str, ...] = ()
    """Environment variables that the environment's process gets besides the usual ones and those of
    the domain's secrets; a field where it is a setting."""

    @property
    def version(self) -> str:
        """Name and version of the environment, stored with each trajectory."""
        return self.environment.version

    @classmethod
    def of_folder(cls, folder: Path) -> Self | None:
        """Return the domain of a folder of tasks in a form that this domain reads, or None.

        Raises:
            SettingsError: the folder has that form, but its tasks cannot be read.
        """
        return None

    def make(self) -> Environment:
        """Return a new environment; override it if the constructor takes arguments."""
        return self.environment()

    def make_async(self) -> "AsyncEnvironment | None":
        """Return an environment whose calls await answers of a server, or None if there is none.

        A run uses it in place of `make`, in the event loop of a rollout worker, so that thousands
        of episodes need no process each. Its calls have the time limits of any environment, and
        must not block otherwise. `start`, if it has one, may take longer (`SlowStart`). A call that
        is cancelled must close its connection.
        """
        return None

    def program(self) -> EnvironmentProgram | None:
        """Return the program that runs the environment in a process, in place of `make`.

        None: the process runs `make` with the packages of this interpreter.
        """
        return None

    @abstractmethod
    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """Return the tasks of a split: endless and shuffled for training, finite for evaluation.

        The same seed gives the same sequence, so that a cursor into it can be resumed.
        """

    def held_out(self, seed: int) -> Iterator[Task]:
        """Return tasks that training never uses, for `success/held_out`; none by default."""
        return iter(())

    def box(self, task: str) -> "SandboxSpec | SandboxSnapshot | None":
        """Return what an episode of a task (its payload) opens its first box with.

        That is a spec, or the snapshot that the box begins with. A pool starts such boxes once the
        scheduler has admitted the task. None: it opens none. Called in a thread.
        """
        return None

    def workspace(self) -> "Workspace":
        """Return a new workspace, in which an agent that is a program of its own may work.

        Raises:
            SettingsError: this domain has none.
        """
        raise SettingsError(
            f"domain {self.name!r} has no workspace, so no agent program can work at its tasks; "
            "leave agent out for it, or take a domain of SWE tasks or task folders"
        )

    def solutions(self, task: Task) -> Mapping[str, Sequence[str | Action]]:
        """Return the actions of known attempts at a task, for `rollart tasks check`.

        "gold" solves the task, "noop" does nothing and does not solve it, and each "cheat:NAME"
        tries to be rewarded without solving it. Empty if none is known.
        """
        return {}

    def digests(self, task: Task) -> TaskDigests:
        """Return what a check of a task holds for; by default its payload and the version of the
        environment."""
        payload = sha256(f"{task.domain}/{task.payload}".encode()).hexdigest()
        return TaskDigests(task=payload, verifier=self.version)

    def judge(self, task: str, diff: str, boxes: "Boxes") -> Judgement:
        """Judge the change of files that an attempt left, as `info["diff"]` has it.

        A better verifier can so judge stored attempts again, without sampling.

        Args:
            task: payload of the task.
            diff: unified diff against the files that the attempt began with; may be empty.
            boxes: source of the box in which the verifier runs.

        Raises:
            SettingsError: this domain keeps no verifier.
            EnvironmentFailedError: the verifier gave no result, which says nothing of the attempt.
            SandboxError: the box could not be started, or has ended.
        """
        raise SettingsError(f"domain {self.name!r} keeps no verifier, so nothing judges a diff")

    def example_action(self, task: Task, random: Random) -> str:
        """Return a well-formed, otherwise random action for a format warm start."""
        raise TypeError(f"domain {self.name!r} has no example actions, so no format warm start")


def close_with_boxes(environment: Environment) -> None:
    """Close an environment, and the boxes that it has left open."""
    try:
        environment.close()
    finally:
        if environment._boxes is not None:
            environment._boxes.close()


def opens_boxes(domain: Domain) -> bool:
    """Return whether a domain says which boxes its episodes open (`Domain.box`)."""
    return type(domain).box is not Domain.box
