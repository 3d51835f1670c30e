"""The base of all domains of SWE tasks: settings of boxes and tests, splits, known solutions."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.envs.base import Domain, Environment
from rollart_flow.envs.swe.cheats import known_solutions
from rollart_flow.envs.swe.environment import SweEnvironment
from rollart_flow.envs.swe.judging import judge_diff, verifier_digest
from rollart_flow.envs.swe.swe_task import SweTask, SweTaskStore
from rollart_flow.envs.swe.verifier import box_spec
from rollart_flow.envs.swe.workspace import (
    SweWorkspace,
    payload_digest,
    start_snapshot,
    task_payload,
)
from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.base import SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.store.cache import cache_folder
from rollart_flow.types import Action, Split, Task
from rollart_flow.types.verdicts import Judgement, TaskDigests
from rollart_flow.validation import check_count, check_number

if TYPE_CHECKING:
    from rollart_flow.sandbox.boxes import Boxes


@dataclass(frozen=True)
class SweDomain(Domain):
    """Base of domains whose tasks lie in a `SweTaskStore`.

    Raises SettingsError if a setting is out of range.
    """

    environment: ClassVar[type[Environment]] = SweEnvironment

    folder: str = ""
    """Folder in which prepared tasks are kept; by default one in the user's cache."""
    max_turns: int = 30
    """Turns of an attempt; the environment judges what is there after the last one."""
    held_out_fraction: float = 0.1
    """Share of the tasks that training never sees, chosen by hash, so approximate."""
    shows_tests: bool = False
    """Whether the agent sees the tests that exist before the task's own test patch."""
    packages: tuple[str, ...] = ()
    """Installed distributions that the tests need beside pytest."""
    command_timeout_s: float = 60.0
    """Limit of one command of the agent [s]."""
    test_timeout_s: float = 300.0
    """Limit of the verifier's session of tests [s]."""
    output_characters: int = 10_000
    """Output of a tool that the agent reads, its beginning and its end."""
    max_diff_kb: int = 1024
    """Largest change that is judged [KiB]; a larger one is a failed attempt."""
    memory_mb: int = 1024
    """Memory of a box [MiB]."""
    disk_mb: int = 256
    """Files of a box, which are kept in memory [MiB]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(self.packages))
        for name in ("max_turns", "output_characters", "max_diff_kb", "memory_mb", "disk_mb"):
            check_count(f"{type(self).__name__}.{name}", getattr(self, name), low=1)
        for name in ("command_timeout_s", "test_timeout_s"):
            setting = f"{type(self).__name__}.{name}"
            check_number(setting, getattr(self, name), low=0, open_low=True)
        name = f"{type(self).__name__}.held_out_fraction"
        check_number(name, self.held_out_fraction, low=0, high=1)

    @abstractmethod
    def prepared(self) -> Sequence[str]:
        """Return the digests of all tasks, in a fixed order; prepare them if they are not there.

        Raises:
            SettingsError: there is no task, or a source cannot be used.
        """

    @property
    def store_folder(self) -> str:
        """Folder of the task store."""
        if self.folder:
            return self.folder
        return str(cache_folder("swe"))

    def make(self) -> SweEnvironment:
        return SweEnvironment(self)

    def workspace(self) -> SweWorkspace:
        return SweWorkspace(self)

    def spec(self) -> SandboxSpec:
        """Return the box of agents and verifiers."""
        limits = SandboxLimits(memory_mb=self.memory_mb, disk_mb=self.disk_mb)
        return box_spec(limits, self.packages)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        trained, _ = self._split()
        if split is Split.EVALUATION:
            yield from map(self._as_task, trained)
            return
        random = Random(f"{self.name}/{seed}")
        while True:
            yield from map(self._as_task, random.sample(trained, len(trained)))

    def held_out(self, seed: int) -> Iterator[Task]:
        return map(self._as_task, self._split()[1])

    def box(self, task: str) -> SandboxSnapshot | None:
        return _start(self, payload_digest(task))

    def solutions(self, task: Task) -> Mapping[str, Sequence[str | Action]]:
        """Return the stored solution, if any, an attempt that only submits, and cheats."""
        stored = self._stored(task.payload)
        store = SweTaskStore(Path(self.store_folder))
        return known_solutions(stored, store.files(stored).start)

    def digests(self, task: Task) -> TaskDigests:
        return TaskDigests(
            task=payload_digest(task.payload), verifier=verifier_digest(self.packages)
        )

    def judge(self, task: str, diff: str, boxes: "Boxes") -> Judgement:
        stored = self._stored(task)
        judgement, _ = judge_diff(
            stored,
            SweTaskStore(Path(self.store_folder)).files(stored),
            diff,
            boxes=boxes,
            spec=self.spec(),
            timeout_s=self.test_timeout_s,
            packages=self.packages,
        )
        return judgement

    def _stored(self, payload: str) -> SweTask:
        return SweTaskStore(Path(self.store_folder)).task(payload_digest(payload))

    def _as_task(self, digest: str) -> Task:
        return Task(self._task_id(digest), self.name, task_payload(digest))

    def _task_id(self, digest: str) -> str:
        stored = SweTaskStore(Path(self.store_folder)).task(digest)
        return f"{self.name}/{stored.task_id}"

    def _split(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the digests that are trained on, and those that are held out."""
        split: tuple[list[str], list[str]] = ([], [])
        for digest in self.prepared():
            share = int(hashlib.sha256(digest.encode()).hexdigest()[:12], 16) / 16**12
            split[share < self.held_out_fraction].append(digest)
        if not split[0]:
            raise SettingsError(
                f"{type(self).__name__}: no task is left to train on; lower held_out_fraction or "
                "give more sources"
            )
        return split


@lru_cache(maxsize=16)
def _start(domain: SweDomain, digest: str) -> SandboxSnapshot:
    """Return what attempts at a task begin with, one object for all attempts of a group."""
    store = SweTaskStore(Path(domain.store_folder))
    return start_snapshot(domain.spec(), store.files(store.task(digest)).start)
