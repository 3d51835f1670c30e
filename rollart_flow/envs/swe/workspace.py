"""The workspace of SWE tasks: files are changed in a box, and the diff alone is judged."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rollart_flow.envs.base import Info
from rollart_flow.envs.swe.command_suspicions import suspicions_of
from rollart_flow.envs.swe.file_tree import FileTree, pack_tar, read_tar
from rollart_flow.envs.swe.judging import judge_diff
from rollart_flow.envs.swe.protected_files import is_protected
from rollart_flow.envs.swe.swe_task import SweTask, SweTaskStore, TaskFiles
from rollart_flow.envs.swe.unified_diff import Difference, make_diff
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

_COMMIT = (
    "command -v git >/dev/null || exit 0; "
    "git init -q -b main && git add -A -f && "
    "GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z' "
    "git -c user.name=task -c user.email=task@localhost -c gc.auto=0 commit -q -m task "
    "&& rm -rf .git/logs .git/hooks"
)
"""One commit without a past; a box without git has no repository."""


class SweSettings(WorkspaceSettings, Protocol):
    """The settings of a domain that its environment and workspace read."""

    @property
    def test_timeout_s(self) -> float: ...

    @property
    def packages(self) -> tuple[str, ...]: ...

    @property
    def store_folder(self) -> str: ...

    def spec(self) -> SandboxSpec: ...


class SweWorkspace(Workspace):
    """One attempt. `info` of its end has success, verdicts, verifier, diff and suspicions.

    Args:
        settings: the domain.
    """

    def __init__(self, settings: SweSettings) -> None:
        super().__init__()
        self._settings = settings
        self._task: SweTask | None = None
        self._files = TaskFiles({}, {})

    def open(self, seed: int, task: str, equipment: Equipment = NO_EQUIPMENT) -> "tuple[str, Box]":
        """Open a box with the files of a task. Nothing is random."""
        self.begin()
        store = SweTaskStore(Path(self._settings.store_folder))
        self._task = store.task(payload_digest(task))
        self._files = store.files(self._task)
        spec = self._settings.spec()
        start = start_snapshot(spec, self._files.start)
        box = self.boxes.open(equipment.added(spec), snapshot=start)
        with closed_on_error(box):
            done = box.exec(_COMMIT)
            if not done.ok:
                said = f"the repository cannot be made: {done.stderr[-300:]}"
                raise EnvironmentFailedError(said)
        return self._task.statement, box

    def hear(self, text: str) -> None:
        self.suspect(*suspicions_of(text))

    def judged(self, box: "Box", *, last: bool) -> AttemptEnd:
        """Compare the files that the agent left with those of the start, and judge the diff."""
        assert self._task is not None
        try:
            left = read_tar(box.snapshot().archive)
        except (SandboxFileError, SettingsError) as error:
            self.suspect(SuspicionKind.LARGE_DIFF.said(str(error)))
            return AttemptEnd(0.0, self._info("", success=False))
        finally:
            box.close()
        if left.odd:
            self.suspect(SuspicionKind.ODD_FILES.said(", ".join(left.odd[:5])))
        difference = self._difference(left.files)
        if difference is None:
            return AttemptEnd(0.0, self._info("", success=False))
        judgement, suspicions = judge_diff(
            self._task,
            self._files,
            difference.text,
            boxes=self.boxes,
            spec=self._settings.spec(),
            timeout_s=self._settings.test_timeout_s,
            packages=self._settings.packages,
        )
        self.suspect(*suspicions)
        info = self._info(difference.text, success=judgement.success)
        verdicts = [verdict.as_json() for verdict in judgement.verdicts]
        judged = {"verdicts": verdicts, "verifier": judgement.verifier}
        return AttemptEnd(judgement.reward, {**info, **judged})

    def _difference(self, left: FileTree) -> Difference | None:
        """Return the change; None if it is larger than is judged."""
        start, most = self._files.start, self._settings.max_diff_kb << 10
        changed = {path: file for path, file in left.items() if start.get(path) != file}
        size = sum(len(file.data) for file in changed.values())
        difference = make_diff(start, left) if size <= 2 * most else None
        if difference is None or len(difference.text) > most:
            self.suspect(SuspicionKind.LARGE_DIFF.said(f"{size >> 10} KiB in changed files"))
            return None
        if difference.left_out:
            self.suspect(SuspicionKind.BINARY_CHANGE.said(", ".join(difference.left_out[:5])))
        touched = [path for path in difference.paths if is_protected(path)]
        if touched:
            self.suspect(SuspicionKind.TOUCHED_TESTS.said(", ".join(touched[:5])))
        return difference

    def _info(self, diff: str, *, success: bool) -> Info:
        return {"success": success, "diff": diff, "suspicions": self.suspicions}


def start_snapshot(spec: SandboxSpec, start: FileTree) -> SandboxSnapshot:
    """Return the files of a task as a snapshot, equal for all attempts at it."""
    return SandboxSnapshot(spec, pack_tar(start))


def task_payload(digest: str) -> str:
    """Return the payload of a stored task."""
    return json.dumps({"digest": digest})


def payload_digest(payload: str) -> str:
    """Return the digest of the task that a payload names.

    Raises:
        EnvironmentFailedError: it names none.
    """
    try:
        digest = json.loads(payload)["digest"]
    except (ValueError, KeyError, TypeError):
        digest = None
    if not isinstance(digest, str) or not digest.isalnum():
        raise EnvironmentFailedError(f"{payload[:80]!r} is no payload of a SWE task")
    return digest
