"""The boxes of one attempt at a task folder, and what happens in them, in the order of the format.

The agent's box never holds tests or solutions. A step is judged in a fresh box: it is built anew,
gets the work folder (`environment_mode` shared) or the declared artifacts alone (separate), and
only then the tests. The reward is read after every process of that box was killed.
"""

import posixpath
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_flow.envs.swe.harbor.rewards import LOGS, read_reward
from rollart_flow.envs.swe.harbor.support import verifier_env
from rollart_flow.envs.swe.harbor.task_config import Artifact, Healthcheck
from rollart_flow.envs.swe.harbor.task_folder import TaskFolder, TaskStep
from rollart_flow.envs.workspace import NO_EQUIPMENT, Equipment
from rollart_flow.errors import EnvironmentFailedError, SandboxFileError
from rollart_flow.sandbox.base import KilledBy, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.boxes import closed_on_error

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box
    from rollart_flow.sandbox.boxes import Boxes

_SHORT_S = 60.0
_KEPT_LOGS = "/logs/artifacts"


@dataclass(frozen=True, slots=True)
class Verified:
    """The judgement of one step by its verifier."""

    reward: dict[str, float]
    alive: int
    """Processes that lived when the verifier had ended."""


@dataclass(frozen=True, slots=True)
class HarborTrial:
    """Opens and judges boxes of one task.

    Args:
        folder: the task, which is checked for changes before anything of it is used.
        spec: the box of its environment.
        boxes: source of boxes.
    """

    folder: TaskFolder
    spec: SandboxSpec
    boxes: "Boxes"

    def opened(self, equipment: Equipment = NO_EQUIPMENT) -> "Box":
        """Return a new box of the agent that is healthy.

        Args:
            equipment: what the box has for the program of the agent.

        Raises:
            EnvironmentFailedError: the health check does not pass.
            SandboxError: the box could not be started, or has ended.
        """
        self.folder.check()
        box = self.boxes.open(equipment.added(self.spec, len(self.folder.steps)))
        with closed_on_error(box):
            wait_healthy(box, self.folder.config.environment.healthcheck)
        return box

    def collected(self, box: "Box", step: TaskStep, kept: Path) -> list[tuple[str, Path]]:
        """Copy artifacts of a box in which no process lives to a folder of the host.

        Returns (path in the verifier's box, copy). An artifact that is missing is left out: that
        is the verifier's to judge.
        """
        copies = []
        for number, artifact in enumerate((Artifact(source=_KEPT_LOGS), *step.artifacts)):
            source = posixpath.join(self.spec.workdir, artifact.source)
            copy = kept / str(number)
            try:
                box.download(source, copy)
            except SandboxFileError:
                continue
            _exclude(copy, artifact.exclude)
            copies.append((posixpath.join(self.spec.workdir, artifact.destination or source), copy))
        return copies

    def verified(
        self, step: TaskStep, work: SandboxSnapshot, artifacts: Sequence[tuple[str, Path]]
    ) -> Verified:
        """Judge a step in a fresh box.

        Args:
            step: the step.
            work: the work folder that the agent left; a separate verifier does not get it.
            artifacts: of `collected`.

        Raises:
            EnvironmentFailedError: the verifier gave no reward, or took too long.
            SandboxError: the box could not be started, or has ended.
        """
        self.folder.check()
        table = step.verifier
        box = self._with_work(None if table.environment_mode == "separate" else work)
        try:
            for path, copy in artifacts:
                box.upload(copy, path)
            box.exec(["rm", "-rf", "/tests", LOGS], timeout_s=_SHORT_S)
            box.upload(step.tests, "/tests")
            box.exec(["mkdir", "-p", LOGS], timeout_s=_SHORT_S)
            env = verifier_env(self.folder, step)
            command = ["/bin/bash", "/tests/test.sh"]
            done = box.exec(command, timeout_s=table.timeout_sec, env=env)
            alive = box.processes()
            box.kill_all()
            if done.killed_by is KilledBy.TIME:
                raise EnvironmentFailedError(f"the verifier took over {table.timeout_sec:g} s")
            return Verified(read_reward(box), alive)
        finally:
            box.close()

    def _with_work(self, work: SandboxSnapshot | None) -> "Box":
        """Return a new box of the task's image, with a work folder in place of the image's."""
        box = self.boxes.open(self.spec)
        if work is None:
            return box
        with closed_on_error(box):
            # What the agent removed must not come back, so nothing of the image's folder stays.
            unpack = f"find {shlex.quote(self.spec.workdir)} -mindepth 1 -delete && tar -xf -"
            done = box.exec(["/bin/sh", "-c", unpack], stdin=work.archive, timeout_s=_SHORT_S)
            if not done.ok:
                raise EnvironmentFailedError(f"the work folder: {done.stderr.strip()[-300:]}")
        return box


def wait_healthy(box: "Box", check: Healthcheck | None) -> None:
    """Run a health check until it passes.

    Raises:
        EnvironmentFailedError: it has not passed after its last try.
    """
    if check is None:
        return
    _wait_in(box, check.start_period_sec)
    for attempt in range(check.retries):
        _wait_in(box, check.interval_sec if attempt else 0.0)
        command = ["/bin/bash", "-c", check.command]
        if box.exec(command, timeout_s=check.timeout_sec).ok:
            return
    raise EnvironmentFailedError(f"the health check {check.command!r} does not pass")


def _wait_in(box: "Box", seconds: float) -> None:
    """Let the time pass in the box, whose end ends the wait too."""
    if seconds > 0:
        box.exec(["sleep", str(seconds)], timeout_s=seconds + _SHORT_S)


def _exclude(copy: Path, patterns: Sequence[str]) -> None:
    """Remove what an artifact leaves out, by name or by path below it."""
    for path in sorted(copy.rglob("*"), reverse=True):
        name = path.relative_to(copy).as_posix()
        if any(fnmatch(name, pattern) or fnmatch(path.name, pattern) for pattern in patterns):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
