"""The environment of an agent that is a program: its steps are the stages of an attempt.

`reset` opens the box with the task (INIT). A step with {"run": key} runs the program in it (RUN),
one with {"judge": {"last": whether the attempt ends in any case, "said": what the policy said}}
judges what it left (POSTRUN). `gateway.core.agent_manager` takes them.

Invariants: the key of the gateway is in the variables of the program alone, and in nothing that is
returned or stored. The box has no network but its own loopback, where `forwarder` leads to the
gateway's socket and nowhere else.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.envs.base import Domain, Environment, Info
from rollart_flow.envs.workspace import AttemptEnd, Equipment
from rollart_flow.errors import EnvironmentFailedError, SandboxFileError
from rollart_flow.harness.harness import GRACE_S, Harness
from rollart_flow.harness.profile import Launch, LaunchSite
from rollart_flow.harness.profiles.installing import AGENTS_VARIABLE
from rollart_flow.sandbox.base import SOCKET_PATH, CommandResult
from rollart_flow.sandbox.boxes import VARIANT_VARIABLE, LocalBoxes
from rollart_flow.sandbox.images.settings import VARIABLES
from rollart_flow.sandbox.interpreter import python_command
from rollart_flow.text import one_line
from rollart_flow.types import Split, Task

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box

PORT = 8127
"""Port of the gateway on the loopback of each box, which no other box shares."""
MODEL = "policy"
"""Name of the model that programs are told; the gateway takes any."""
HOME = "/tmp/agent"
"""Folder for settings and caches of the program; it is not part of the task's files."""
PROGRAMS = "/opt/agent"
"""Folder in which a box shows the program."""
_SAID = 500
"""Characters of a program's output that are reported."""


class AgentEnvironment(Environment):
    """One attempt of a program.

    Args:
        settings: domain, program and socket.

    Raises:
        SettingsError: the program is not installed, or the domain has no workspace.
    """

    version = "agent/1"

    def __init__(self, settings: "AgentDomain") -> None:
        self._harness = settings.harness
        self._profile = settings.harness.profile()
        self._programs = self._profile.programs()
        self._socket = settings.socket
        self._context_tokens = settings.context_tokens
        self.boxes = LocalBoxes(settings.sandbox or None)
        self._workspace = settings.domain.workspace()
        self._box: Box | None = None
        self._instruction = ""

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        """Open a box with a task; `info["limit_s"]` is the task's own limit of time, if any."""
        self.close()
        workspace, harness = self._workspace, self._harness
        workspace.boxes = self.boxes
        shown = {} if self._programs is None else {PROGRAMS: str(self._programs)}
        equipment = Equipment(
            mounts=shown,
            socket=self._socket or None,
            memory_mb=harness.memory_mb,
            disk_mb=harness.disk_mb,
            processes=harness.processes,
            lifetime_s=harness.longest_s,
        )
        self._instruction, self._box = workspace.open(seed, task, equipment)
        return self._instruction, self._limit()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Run the program, or judge what it left."""
        ((stage, argument),) = json.loads(action).items()
        return self._judge(**argument) if stage == "judge" else self._run(argument)

    def _run(self, key: str) -> tuple[str, float, bool, bool, Info]:
        box = self._opened()
        launch = self._profile.launch(self._site(box, key))
        try:
            box.exec(["mkdir", "-p", HOME])
            for path, text in launch.files.items():
                box.write(path, text.encode())
        except SandboxFileError as error:
            raise EnvironmentFailedError(f"files of the agent: {error}") from error
        done = box.exec(
            python_command(["-c", _forwarder(), str(PORT), SOCKET_PATH, *launch.command]),
            timeout_s=self._harness.timeout_s + GRACE_S,
            stdin=launch.stdin.encode(),
            env=_variables(launch),
        )
        info = {
            "exit_code": done.exit_code,
            "killed": done.killed_by.value,
            "said": _said(done).replace(key, "***"),
            "seconds": done.seconds,
        }
        return "", 0.0, False, False, info

    def _judge(self, last: bool, said: list[str]) -> tuple[str, float, bool, bool, Info]:
        for text in said:
            self._workspace.hear(text)
        box, self._box = self._opened(), None  # the workspace closes it, unless the task goes on
        end = self._workspace.conclude(box, last=last)
        if isinstance(end, AttemptEnd):
            return "", end.reward, True, False, end.info
        self._instruction, self._box = end, box
        return end, 0.0, False, False, self._limit()

    def _limit(self) -> Info:
        seconds = self._workspace.step_s
        return {"limit_s": seconds} if math.isfinite(seconds) else {}

    def close(self) -> None:
        """Close the box of an attempt that has not ended."""
        box, self._box = self._box, None
        if box is not None:
            box.close()

    def _opened(self) -> "Box":
        if self._box is None:
            raise EnvironmentFailedError("no attempt is open; call reset first")
        return self._box

    def _site(self, box: "Box", key: str) -> LaunchSite:
        workdir = box.exec(["pwd"]).stdout.strip()
        return LaunchSite(
            url=f"http://127.0.0.1:{PORT}",
            key=key,
            model=MODEL,
            instruction=self._instruction,
            workdir=workdir,
            home=HOME,
            programs=PROGRAMS,
            context_tokens=self._context_tokens,
        )


@dataclass(frozen=True)
class AgentDomain(Domain):
    """A domain at whose tasks a program works."""

    environment: ClassVar[type[Environment]] = AgentEnvironment

    domain: Domain
    harness: Harness
    socket: str = ""
    """Path of the gateway's socket; empty if nothing is run."""
    sandbox: str = ""
    """Kind of the boxes, as `rollout.sandbox`; empty: what `ROLLART_SANDBOX` says."""
    context_tokens: int = 0
    """Size of the context that the program is told; 0 if nothing is run."""

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the domain."""
        return self.domain.name

    @property
    def environ(self) -> tuple[str, ...]:  # type: ignore[override]
        """Variables that its processes get: of the domain, of programs and of images."""
        return (*self.domain.environ, AGENTS_VARIABLE, VARIANT_VARIABLE, *VARIABLES)

    @property
    def version(self) -> str:
        """Versions of the domain's environment and of the program's profile."""
        profile = self.harness.profile()
        return f"{self.domain.version}+{profile.name}/{profile.version}"

    def make(self) -> AgentEnvironment:
        return AgentEnvironment(self)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return self.domain.tasks(split, seed)


@cache
def _forwarder() -> str:
    return (Path(__file__).parent / "forwarder.py").read_text()


def _variables(launch: Launch) -> dict[str, str]:
    local = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return {"HOME": HOME, **local, **launch.variables}


def _said(done: CommandResult) -> str:
    """Return the end of what a program printed, errors before results, in one line."""
    text = done.stderr.strip() or done.stdout.strip()
    return one_line(text[-_SAID:])
