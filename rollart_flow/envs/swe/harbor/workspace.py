"""The workspace of a task folder: the box of its image, and the folder's own verifier."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rollart_flow.envs.swe.command_suspicions import suspicions_of
from rollart_flow.envs.swe.file_tree import FileTree, read_tar
from rollart_flow.envs.swe.harbor.rewards import combined, reaches, verdicts_of
from rollart_flow.envs.swe.harbor.task_folder import TaskFolder, TaskStep, read_task_folder
from rollart_flow.envs.swe.harbor.trial import HarborTrial, wait_healthy
from rollart_flow.envs.swe.unified_diff import make_diff
from rollart_flow.envs.workspace import (
    NO_EQUIPMENT,
    AttemptEnd,
    Equipment,
    Workspace,
    WorkspaceSettings,
)
from rollart_flow.errors import EnvironmentFailedError, SandboxFileError, SettingsError
from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.boxes import closed_on_error
from rollart_flow.types.suspicions import SuspicionKind

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box

HARBOR_VERSION = "harbor/1"
"""Name and version of the environment of task folders."""


class HarborSettings(WorkspaceSettings, Protocol):
    """The settings of a domain that its environment and workspace read."""

    @property
    def folder(self) -> str: ...

    @property
    def attempt_s(self) -> float: ...

    def spec_of(self, folder: TaskFolder) -> SandboxSpec: ...


class HarborWorkspace(Workspace):
    """One attempt. `info` of its end has success, verdicts, verifier, diff and suspicions.

    Args:
        settings: the domain.
    """

    def __init__(self, settings: HarborSettings) -> None:
        super().__init__()
        self._settings = settings
        self._trial: HarborTrial | None = None
        self._start: FileTree = {}
        self._place = 0
        self._rewards: list[dict[str, float]] = []

    def open(self, seed: int, task: str, equipment: Equipment = NO_EQUIPMENT) -> "tuple[str, Box]":
        """Open the box of a task and wait until it is healthy. Nothing is random."""
        self.begin()
        folder = folder_of(task, Path(self._settings.folder))
        spec = self._settings.spec_of(folder)
        self._trial = HarborTrial(folder, spec, self.boxes)
        box = self._trial.opened(equipment)
        with closed_on_error(box):
            self._start = read_tar(box.snapshot().archive).files
            self._place, self._rewards = 0, []
            wait_healthy(box, self._step.healthcheck)
        skills = folder.config.environment.skills_dir
        hint = f"\n\nSkills that may help are in {skills}." if skills else ""
        self._limit_step()
        return self._step.instruction + hint, box

    def _limit_step(self) -> None:
        """Let the time of the agent for a step begin."""
        self.step_s = min(self._step.agent.timeout_sec, self._settings.attempt_s)

    @property
    def _step(self) -> TaskStep:
        assert self._trial is not None
        return self._trial.folder.steps[self._place]

    def before_kill(self, box: "Box") -> None:
        """Run the hooks that collect what only living processes can give."""
        for hook in self._step.verifier.collect:
            box.exec(["/bin/bash", "-c", hook.command], timeout_s=hook.timeout_sec)

    def hear(self, text: str) -> None:
        self.suspect(*suspicions_of(text))

    def judged(self, box: "Box", *, last: bool) -> AttemptEnd | str:
        """Judge a step in a fresh box; go on with the next one if its reward is enough."""
        assert self._trial is not None
        step, folder = self._step, self._trial.folder
        try:
            work = box.snapshot()
        except SandboxFileError as error:
            self.suspect(SuspicionKind.LARGE_DIFF.said(str(error)))
            self._rewards.append({"reward": 0.0})
            return self._ended({})
        with tempfile.TemporaryDirectory(prefix="rollart-artifacts-") as kept:
            artifacts = self._trial.collected(box, step, Path(kept))
            goes_on = not last and self._place + 1 < len(folder.steps)
            if not goes_on:
                box.close()
            verified = self._trial.verified(step, work, artifacts)
        self._rewards.append(verified.reward)
        if verified.alive:
            detail = f"{verified.alive} at the end of the verifier"
            self.suspect(SuspicionKind.CHILDREN_ALIVE.said(detail))
        if goes_on and reaches(verified.reward, step.min_reward):
            self._place += 1
            wait_healthy(box, self._step.healthcheck)
            self._limit_step()
            return self._step.instruction
        return self._ended(self._left(work))

    def _left(self, work: SandboxSnapshot) -> FileTree:
        """Return the files that the agent left; those of the start if they are too large."""
        try:
            left = read_tar(work.archive)
        except SettingsError as error:
            self.suspect(SuspicionKind.LARGE_DIFF.said(str(error)))
            return self._start
        if left.odd:
            self.suspect(SuspicionKind.ODD_FILES.said(", ".join(left.odd[:5])))
        return left.files

    def _ended(self, left: FileTree) -> AttemptEnd:
        assert self._trial is not None
        folder = self._trial.folder
        scores = [reward["reward"] for reward in self._rewards]
        strategy = folder.config.multi_step_reward_strategy
        reward = combined(scores, len(folder.steps), strategy)
        steps = zip(folder.steps, self._rewards, strict=False)
        verdicts = [v.as_json() for s, parts in steps for v in verdicts_of(parts, s.name)]
        diff = self._diff(left)
        info: dict[str, Any] = {
            "success": reward >= 1.0,
            "verdicts": verdicts,
            "verifier": verifier_of(folder),
            "diff": diff,
            "suspicions": self.suspicions,
        }
        return AttemptEnd(reward, info)

    def _diff(self, left: FileTree) -> str:
        most = self._settings.max_diff_kb << 10
        size = sum(len(f.data) for path, f in left.items() if self._start.get(path) != f)
        difference = make_diff(self._start, left) if size <= 2 * most else None
        if difference is None or len(difference.text) > most:
            self.suspect(SuspicionKind.LARGE_DIFF.said(f"{size >> 10} KiB in changed files"))
            return ""
        if difference.left_out:
            self.suspect(SuspicionKind.BINARY_CHANGE.said(", ".join(difference.left_out[:5])))
        return difference.text


def verifier_of(folder: TaskFolder) -> str:
    """Return what identifies the verifier of a task: its tests are part of the folder."""
    return f"{HARBOR_VERSION}/{folder.digest}"


def folder_payload(folder: TaskFolder, root: Path) -> str:
    """Return the payload of a task in a folder of tasks."""
    name = folder.path.relative_to(root).as_posix()
    return json.dumps({"folder": name, "digest": folder.digest})


def folder_of(payload: str, root: Path) -> TaskFolder:
    """Return the task folder that a payload names.

    Raises:
        EnvironmentFailedError: it names none, or the folder has changed since.
    """
    try:
        table = json.loads(payload)
        name, digest = str(table["folder"]), table["digest"]
    except (ValueError, KeyError, TypeError):
        raise EnvironmentFailedError(f"{payload[:80]!r} is no payload of a task folder") from None
    if name.startswith("/") or ".." in name.split("/"):
        raise EnvironmentFailedError(f"{name!r} is no task folder below {root}")
    try:
        folder = read_task_folder(root / name)
    except SettingsError as error:
        raise EnvironmentFailedError(str(error)) from error
    if folder.digest != digest:
        raise EnvironmentFailedError(f"the task folder {folder.path} has changed; read it again")
    return folder
