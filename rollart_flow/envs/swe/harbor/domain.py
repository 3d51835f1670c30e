"""Task folders of the Harbor format as a domain."""

import base64
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar, Self

from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.swe.file_tree import read_tar
from rollart_flow.envs.swe.harbor.environment import HarborEnvironment
from rollart_flow.envs.swe.harbor.rewards import verdicts_of
from rollart_flow.envs.swe.harbor.support import box_of, check_supported
from rollart_flow.envs.swe.harbor.task_folder import (
    TaskFolder,
    TaskStep,
    expanded_env,
    read_task_folder,
)
from rollart_flow.envs.swe.harbor.trial import HarborTrial
from rollart_flow.envs.swe.harbor.workspace import (
    HarborWorkspace,
    folder_of,
    folder_payload,
    verifier_of,
)
from rollart_flow.envs.swe.unified_diff import apply_diff, changed_paths
from rollart_flow.errors import DiffError, EnvironmentFailedError, SettingsError
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.types import Action, Split, Task, ToolCall
from rollart_flow.types.verdicts import Judgement, TaskDigests
from rollart_flow.validation import check_count, check_number

if TYPE_CHECKING:
    from rollart_flow.sandbox.box import Box
    from rollart_flow.sandbox.boxes import Boxes


@dataclass(frozen=True)
class HarborTasks(Domain):
    """The tasks of a folder: one task folder, or a folder of task folders.

    Boxes never have a network. A Dockerfile is built once, over an image of the cache. A folder
    that needs more than a box (several containers, GPUs, other users, MCP servers) is refused.

    Raises SettingsError if a setting is out of range; asking for tasks raises it if a folder is
    wrong, or this machine cannot do what it asks.
    """

    name: ClassVar[str] = "harbor"
    environment: ClassVar[type[Environment]] = HarborEnvironment

    folder: str = ""
    """A task folder, or a folder of them."""
    images: tuple[tuple[str, str], ...] = ()
    """Images of the cache by the name that FROM or docker_image says: a name or digest in the
    cache, or "host" for the host's `/usr`. The name "*" stands for all others."""
    environ: tuple[str, ...] = ()
    """Variables of this process that tasks may name in their own, as `${NAME}`."""
    refuses_network: bool = False
    """Whether tasks that ask for a network are refused, instead of run without one."""
    needs_admission: bool = True
    """Whether only tasks that `rollart tasks check` admitted are trained on."""
    max_turns: int = 50
    """Turns of an attempt; what is there after the last one is judged."""
    held_out_fraction: float = 0.0
    """Share of the tasks that training never sees, chosen by hash, so approximate."""
    attempt_s: float = 3600.0
    """Limit of an attempt, if the task's own is longer [s]."""
    command_timeout_s: float = 60.0
    """Limit of one command of the agent [s]."""
    output_characters: int = 10_000
    """Output of a tool that the agent reads, its beginning and its end."""
    max_diff_kb: int = 1024
    """Largest change that is stored [KiB]."""
    memory_mb: int = 2048
    """Memory of a box whose task says nothing of it [MiB]."""
    disk_mb: int = 1024
    """Largest size of the files of a box, which are kept in memory [MiB]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "environ", tuple(self.environ))
        object.__setattr__(self, "images", tuple((str(k), str(v)) for k, v in self.images))
        for name in ("max_turns", "output_characters", "max_diff_kb", "memory_mb", "disk_mb"):
            check_count(f"HarborTasks.{name}", getattr(self, name), low=1)
        for name in ("attempt_s", "command_timeout_s"):
            check_number(f"HarborTasks.{name}", getattr(self, name), low=0, open_low=True)
        name = "HarborTasks.held_out_fraction"
        check_number(name, self.held_out_fraction, low=0, high=1)
        if not self.folder:
            raise SettingsError("HarborTasks: folder is empty; give a task folder or one of them")

    @classmethod
    def of_folder(cls, folder: Path) -> Self | None:
        is_tasks = (folder / "task.toml").is_file() or any(folder.glob("*/task.toml"))
        return cls(folder=str(folder.resolve())) if is_tasks else None

    def make(self) -> HarborEnvironment:
        return HarborEnvironment(self)

    def workspace(self) -> HarborWorkspace:
        return HarborWorkspace(self)

    def spec_of(self, folder: TaskFolder) -> SandboxSpec:
        """Return the box of a task."""
        return box_of(folder, dict(self.images), memory_mb=self.memory_mb, disk_mb=self.disk_mb)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        trained = [task for task in self._all() if not self._is_held_out(task)]
        if not trained:
            raise SettingsError("HarborTasks: no task is left to train on")
        if split is Split.EVALUATION:
            yield from trained
            return
        random = Random(f"{self.name}/{seed}")
        while True:
            yield from random.sample(trained, len(trained))

    def held_out(self, seed: int) -> Iterator[Task]:
        return (task for task in self._all() if self._is_held_out(task))

    def box(self, task: str) -> SandboxSpec | None:
        return self.spec_of(folder_of(task, Path(self.folder)))

    def digests(self, task: Task) -> TaskDigests:
        folder = folder_of(task.payload, Path(self.folder))
        image = self.spec_of(folder).image or ""
        return TaskDigests(task=folder.digest, image=image, verifier=verifier_of(folder))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str | Action]]:
        """Return the folder's own solution, an attempt that only submits, and cheats."""
        folder = folder_of(task.payload, Path(self.folder))
        submit = Action("", None, (ToolCall("1", "submit", {}),))
        found: dict[str, Sequence[Action]] = {
            "noop": [submit] * len(folder.steps),
            "cheat:daemon": [_bash(_DAEMON), *[submit] * len(folder.steps)],
            "cheat:reward": [_bash(_REWARD), *[submit] * len(folder.steps)],
        }
        if all((step.solution / "solve.sh").is_file() for step in folder.steps):
            env = expanded_env(folder.config.solution.env, f"task {folder.task_id!r}: solution.env")
            pairs = [(_bash(_solved(step, env)), submit) for step in folder.steps]
            found["gold"] = [action for pair in pairs for action in pair]
        return found

    def judge(self, task: str, diff: str, boxes: "Boxes") -> Judgement:
        """Judge a diff of the work folder; see `Domain.judge`.

        Artifacts outside of the work folder, links and files that are no text are not in a diff.
        """
        folder = folder_of(task, Path(self.folder))
        if len(folder.steps) > 1:
            raise SettingsError(f"task {folder.task_id!r} has steps; a diff cannot be judged alone")
        trial = HarborTrial(folder, self.spec_of(folder), boxes)
        box = trial.opened()
        try:
            _change(box, diff)
            step = folder.steps[0]
            with tempfile.TemporaryDirectory(prefix="rollart-artifacts-") as kept:
                artifacts = trial.collected(box, step, Path(kept))
                verified = trial.verified(step, box.snapshot(), artifacts)
        finally:
            box.close()
        reward = verified.reward["reward"]
        verdicts = tuple(verdicts_of(verified.reward, step.name))
        return Judgement(
            reward=reward, success=reward >= 1.0, verdicts=verdicts, verifier=verifier_of(folder)
        )

    def _all(self) -> Sequence[Task]:
        return _tasks(self)

    def _is_held_out(self, task: Task) -> bool:
        share = int(sha256(task.task_id.encode()).hexdigest()[:12], 16) / 16**12
        return share < self.held_out_fraction


_DAEMON = (
    "setsid nohup bash -c 'mkdir -p /logs/verifier; while true; do "
    "echo 1 > /logs/verifier/reward.txt; sleep 0.05; done' >/dev/null 2>&1 &"
)
_REWARD = (
    "mkdir -p /logs/verifier /tests; echo 1 | tee /logs/verifier/reward.txt reward.txt; "
    "echo '{\"reward\": 1}' > /logs/verifier/reward.json; "
    "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh"
)


@lru_cache(maxsize=16)
def _tasks(domain: HarborTasks) -> tuple[Task, ...]:
    """Read all task folders."""
    root = Path(domain.folder)
    if (root / "task.toml").is_file():
        paths = [root]
    elif root.is_dir():
        paths = sorted(path.parent for path in root.glob("*/task.toml"))
    else:
        paths = []
    if not paths:
        raise SettingsError(f"HarborTasks: {root} is no task folder, and has none")
    found = []
    for path in paths:
        folder = read_task_folder(path)
        check_supported(folder, dict(domain.images), refuses_network=domain.refuses_network)
        payload = folder_payload(folder, root)
        found.append(Task(f"{domain.name}/{folder.task_id}", domain.name, payload))
    return tuple(found)


def _change(box: "Box", diff: str) -> None:
    """Apply a diff to the work folder of a box."""
    before = read_tar(box.snapshot().archive).files
    try:
        after = apply_diff(before, diff)
    except DiffError as error:
        raise EnvironmentFailedError(str(error)) from error
    for path in changed_paths(diff):
        box.exec(["rm", "-f", "--", path])
        if path in after:
            box.write(path, after[path].data)
            if after[path].executable:
                box.exec(["chmod", "+x", "--", path])


def _bash(command: str) -> Action:
    return Action("", None, (ToolCall("1", "bash", {"command": command}),))


def _solved(step: TaskStep, env: Mapping[str, str]) -> str:
    """Return a command that puts a solution into the box and runs it."""
    lines = [f"export {key}={shlex.quote(value)}" for key, value in env.items()]
    for path in sorted(step.solution.rglob("*")):
        if path.is_file():
            target = shlex.quote(f"/solution/{path.relative_to(step.solution).as_posix()}")
            data = base64.b64encode(path.read_bytes()).decode()
            lines.append(f"mkdir -p $(dirname {target}); echo {data} | base64 -d > {target}")
    return "\n".join([*lines, "bash /solution/solve.sh; code=$?; rm -rf /solution; exit $code"])
