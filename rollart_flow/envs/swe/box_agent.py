"""The tools of an agent that works on files in a box: bash, view, edit and submit.

Each command has a new shell; only files last from one to the next. An attempt ends with `submit`,
or when its turns are used up; either way what it left is judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, cast

from rollart_flow.envs.base import Info
from rollart_flow.envs.tools import ToolEnvironment, tool
from rollart_flow.envs.workspace import AttemptEnd, Workspace
from rollart_flow.errors import EnvironmentFailedError, SandboxFileError
from rollart_flow.sandbox.base import CommandResult, KilledBy
from rollart_flow.types import Action, Message, Observation
from rollart_flow.types.branching import StepObservation
from rollart_flow.types.messages import system, user

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box

SYSTEM_PROMPT = (
    "You are a software engineer. Solve the task by changing files in the current folder. Call a "
    "tool in every turn: bash runs a command in a new shell, view shows a file, edit replaces "
    "text in a file. Call submit when the task is solved. There is no network."
)
_ANSWER = "Call a tool; call submit when the task is solved."
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """The bounds of one attempt."""

    max_turns: int
    command_timeout_s: float
    output_characters: int


class BoxAgentEnvironment(ToolEnvironment):
    """An agent with tools in the box of a workspace.

    Args:
        limits: bounds of an attempt.
        workspace: opens the box, and judges what the agent left.
    """

    def __init__(self, limits: AgentLimits, workspace: Workspace) -> None:
        self._limits = limits
        self._workspace = workspace
        self._box: Box | None = None
        self._turns, self._submitted, self._ends_at = 0, False, math.inf

    def reset(self, seed: int, task: str) -> tuple[Observation, Info]:
        """Open a box with the files of a task."""
        self.close()
        self._workspace.boxes = self.boxes
        instruction, self._box = self._workspace.open(seed, task)
        self._turns, self._submitted = 0, False
        self._limit_time()
        return (system(SYSTEM_PROMPT), user(instruction)), {}

    def _limit_time(self) -> None:
        """Let the first turn that ends after the task's own limit be the last one."""
        self._ends_at = monotonic() + self._workspace.step_s

    @tool
    def bash(self, command: str) -> str:
        """Run a command of bash in the work folder and return what it prints.

        Args:
            command: the command; each has a new shell.
        """
        self._workspace.hear(command)
        line = ["/bin/bash", "-c", f"exec 2>&1\n{command}"]
        done = self._open_box().exec(line, timeout_s=self._limits.command_timeout_s)
        return self._shown(done)

    @tool
    def view(self, path: str, first: int = 1, last: int = 200) -> str:
        """Return lines of a file with their numbers.

        Args:
            path: the file, relative to the work folder.
            first: number of the first line.
            last: number of the last line.
        """
        self._workspace.hear(f" {path}")
        data = self._open_box().read(path, max_bytes=_MAX_FILE_BYTES)
        lines = data.decode(errors="replace").splitlines()
        shown = enumerate(lines[max(0, first - 1) : last], start=max(1, first))
        return self._cut("\n".join(f"{number:6}\t{line}" for number, line in shown))

    @tool
    def edit(self, path: str, old: str, new: str) -> str:
        """Replace text in a file, which must occur in it once; create the file if `old` is empty.

        Args:
            path: the file, relative to the work folder.
            old: text to replace, with its indentation.
            new: text in its place.
        """
        self._workspace.hear(f" {path}")
        box = self._open_box()
        if not old:
            try:
                box.read(path, max_bytes=_MAX_FILE_BYTES)
            except SandboxFileError:
                box.write(path, new.encode(errors="replace"))
                return f"created {path}"
            raise ValueError(f"{path} exists; give the text to replace")
        text = box.read(path, max_bytes=_MAX_FILE_BYTES).decode()
        if (count := text.count(old)) != 1:
            raise ValueError(f"the text occurs {count} times in {path}; it must occur once")
        box.write(path, text.replace(old, new).encode(errors="replace"))
        return f"changed {path}"

    @tool
    def submit(self) -> str:
        """End the task. The files as they are now are judged."""
        self._submitted = True
        return "submitted"

    def answer(self, text: str) -> tuple[StepObservation, float, bool, bool, Info]:
        """Ask for a call of a tool."""
        return [user(_ANSWER)], 0.0, False, False, {}

    def step(self, action: Action) -> tuple[StepObservation, float, bool, bool, Info]:
        """Run the calls of an action; judge the attempt if it has ended."""
        box = self._open_box()
        self._turns += 1
        shown, *_ = super().step(action)
        if not box.alive:
            raise EnvironmentFailedError("the sandbox of the attempt has ended")
        last = self._turns >= self._limits.max_turns or monotonic() > self._ends_at
        if not self._submitted and not last:
            return shown, 0.0, False, False, {}
        self._box = None  # the workspace closes it, unless the attempt goes on
        end = self._workspace.conclude(box, last=last)
        if isinstance(end, AttemptEnd):
            return shown, end.reward, self._submitted, not self._submitted, end.info
        self._box, self._submitted = box, False
        self._limit_time()
        said = [user(shown)] if isinstance(shown, str) else list(cast("Sequence[Message]", shown))
        return [*said, user(end)], 0.0, False, False, {}

    def close(self) -> None:
        """Close the box of an attempt that has not ended."""
        box, self._box = self._box, None
        if box is not None:
            box.close()

    def _open_box(self) -> "Box":
        if self._box is None:
            raise EnvironmentFailedError("no attempt is open; call reset first")
        return self._box

    def _shown(self, done: CommandResult) -> str:
        lines = [self._cut(done.stdout.rstrip("\n"))] if done.stdout else []
        if done.killed_by is KilledBy.TIME:
            lines.append(f"[killed after {self._limits.command_timeout_s:g} s]")
        elif done.killed_by is not KilledBy.NOTHING:
            lines.append(f"[killed: limit of {done.killed_by.value}]")
        elif done.exit_code != 0:
            lines.append(f"[exit code {done.exit_code}]")
        return "\n".join(lines) or "[no output]"

    def _cut(self, text: str) -> str:
        """Keep the first and the last half of a text that is too long."""
        most = self._limits.output_characters
        if len(text) <= most:
            return text
        head, tail = text[: most // 2], text[-(most - most // 2) :]
        return f"{head}\n[{len(text) - most} characters left out]\n{tail}"
