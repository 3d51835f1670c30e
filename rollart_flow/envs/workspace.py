"""Workspaces: a box with a task, and the judgement on what a program left in it.

An environment lets a policy work in the box with tools of its own (`swe.box_agent`); an agent that
is a program of its own runs in it (`harness.environment`).

Invariant: when judging begins, no process of the box lives; when it has ended, the box is closed,
unless the attempt goes on.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.types.suspicions import SuspicionKind

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box
    from rollart_flow.sandbox.boxes import Boxes


class WorkspaceSettings(Protocol):
    """The settings of a domain that tools of a workspace read."""

    @property
    def max_turns(self) -> int: ...

    @property
    def command_timeout_s(self) -> float: ...

    @property
    def output_characters(self) -> int: ...

    @property
    def max_diff_kb(self) -> int: ...


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The outcome of an attempt."""

    reward: float
    info: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Parts of a box that are not of its task, but of the program that works in it."""

    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folders of the host by their path in the box, as `SandboxSpec.mounts`."""
    socket: str | None = None
    """Unix socket of the host, as `SandboxSpec.socket`."""
    memory_mb: int = 0
    """Memory for the program, beside that of the task [MiB]."""
    disk_mb: int = 0
    """Size of the program's own files, beside those of the task [MiB]."""
    processes: int = 0
    """Processes and threads of the program, beside those of the task."""
    lifetime_s: float = 0.0
    """Longest time of a part of the task, beside the time of the box without a program [s]."""

    def added(self, spec: SandboxSpec, parts: int = 1) -> SandboxSpec:
        """Return a spec with the equipment, for a task of one or more parts."""
        limits = spec.limits
        return replace(
            spec,
            mounts={**spec.mounts, **self.mounts},
            socket=self.socket or spec.socket,
            limits=replace(
                limits,
                memory_mb=limits.memory_mb + self.memory_mb,
                disk_mb=limits.disk_mb + self.disk_mb,
                processes=limits.processes + self.processes,
                lifetime_s=limits.lifetime_s + parts * self.lifetime_s,
            ),
        )


NO_EQUIPMENT = Equipment()
"""The box of a task as it is."""


class Workspace(ABC):
    """The box of one attempt at a time."""

    boxes: "Boxes"
    """Source of boxes; the owner sets it before `open`."""
    step_s: float = math.inf
    """Limit of the time until the next judgement, as the task names it [s]; known after `open`."""

    def __init__(self) -> None:
        self._suspicions: dict[str, None] = {}

    @abstractmethod
    def open(self, seed: int, task: str, equipment: Equipment = NO_EQUIPMENT) -> "tuple[str, Box]":
        """Begin an attempt at a task (its payload); return the instruction and a box with the task.

        The caller concludes the attempt, or closes the box.

        Raises:
            EnvironmentFailedError: there is no such task.
            SandboxError: the box could not be started, or has ended.
        """

    @abstractmethod
    def judged(self, box: "Box", *, last: bool) -> AttemptEnd | str:
        """Judge the files of a box, or a part of the task, and then return the next instruction.

        Args:
            box: the box of the attempt, in which no process lives.
            last: whether the attempt ends in any case.

        Raises:
            EnvironmentFailedError: the verifier gave no result.
            SandboxError: a box has ended or could not be started.
        """

    def before_kill(self, box: "Box") -> None:  # noqa: B027  most have nothing to collect
        """Collect what only living processes can give."""

    def conclude(self, box: "Box", *, last: bool) -> AttemptEnd | str:
        """Kill every process of a box and judge its files; see `judged`."""
        goes_on = False
        try:
            if (alive := box.processes()) > 0:
                detail = f"{alive} at the end of the attempt"
                self.suspect(SuspicionKind.CHILDREN_ALIVE.said(detail))
            self.before_kill(box)
            box.kill_all()
            end = self.judged(box, last=last)
            goes_on = not isinstance(end, AttemptEnd)
            return end
        finally:
            if not goes_on:
                box.close()

    def hear(self, text: str) -> None:  # noqa: B027  most suspect nothing
        """Look at a text that the policy gave a tool or program, and note suspicions."""

    def begin(self) -> None:
        """Forget the suspicions about an earlier attempt; `open` calls it first."""
        self._suspicions = {}

    def suspect(self, *texts: str) -> None:
        """Note suspicions about the attempt; each text counts once."""
        self._suspicions |= dict.fromkeys(texts)

    @property
    def suspicions(self) -> list[str]:
        """Suspicions about the attempt so far."""
        return list(self._suspicions)
