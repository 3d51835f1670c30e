"""An environment that does with its boxes what the action says, and tells what came of it."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rollart_flow.envs import Domain, Environment
from rollart_flow.envs.base import Info
from rollart_flow.sandbox.base import SandboxLimits, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.box import Box
from rollart_flow.types import Split, Task

SMALL = SandboxSpec(limits=SandboxLimits(memory_mb=64, disk_mb=8, processes=16))


class ProbeEnvironment(Environment):
    """Opens one box at its reset; an action is a Python expression over `box`."""

    version = "probe/1"
    box: Box
    kept: SandboxSnapshot

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self.box = self.boxes.open(SMALL)
        return "", {"pid": os.getpid()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        names = {"box": self.box, "boxes": self.boxes, "Path": Path, "self": self, "SMALL": SMALL}
        try:
            said = repr(eval(action, {"SandboxSpec": SandboxSpec}, names))
        except Exception as error:  # noqa: BLE001  the test compares it
            said = f"{type(error).__mro__[0:3]} {error}"
        return said, 0.0, action == "box.close()", False, {"success": True}

    def keep(self) -> int:
        """Remember a snapshot; return its number of bytes."""
        self.kept = self.box.snapshot()
        return len(self.kept.archive)

    def aside(self, box: Any) -> list[str]:
        """Use a box from several threads at once."""
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(box.exec("echo aside").stdout))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@dataclass(frozen=True)
class Probe(Domain):
    """One endless task."""

    name: ClassVar[str] = "probe"
    environment: ClassVar[type[Environment]] = ProbeEnvironment
    max_turns: int = 4

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        number = 0
        while True:
            yield Task(f"probe/{number}", self.name, "{}")
            number += 1

    def box(self, task: str) -> SandboxSpec:
        return SMALL


class CodeEnvironment(Environment):
    """Counts each action's bytes in a box; leaves a process behind, and closes no box."""

    version = "code/1"

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self.box = self.boxes.open(SMALL)
        self.box.exec("sleep 600 &")
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        done = self.box.exec("cat | wc -c", stdin=action.encode())
        size = int(done.stdout)
        return done.stdout.strip(), float(size % 2), False, False, {"success": size > 3}


@dataclass(frozen=True)
class Code(Domain):
    """Tasks of one box each."""

    name: ClassVar[str] = "code"
    environment: ClassVar[type[Environment]] = CodeEnvironment
    max_turns: int = 2

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        for number in range(4 if split is Split.EVALUATION else 1_000_000):
            yield Task(f"code/{split}/{number}", self.name, f"{number}")

    def box(self, task: str) -> SandboxSpec:
        return SMALL
