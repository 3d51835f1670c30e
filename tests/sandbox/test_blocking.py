"""Boxes without an event loop, and environments that use them."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from rollart_flow.envs import Domain, Environment
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Info
from rollart_flow.envs.process import ProcessEnvironment
from rollart_flow.errors import EnvironmentTimeoutError, SandboxError, SettingsError
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.blocking import BlockingSandbox
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Split, Task
from tests.descriptors import left_open, open_descriptors
from tests.sandbox.probes import SMALL

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


class CodeEnvironment(Environment):
    """Runs each action as a Python program in the box of the episode."""

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self.box = BlockingSandbox(SandboxSpec(limits=SandboxLimits(memory_mb=64, processes=8)))
        return "Print the answer.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        result = self.box.exec(["python3", "-c", action], timeout_s=5)
        right = result.stdout == "42\n"
        return result.stdout or result.stderr, float(right), right, False, {"success": right}

    def close(self) -> None:
        self.box.close()


@dataclass(frozen=True)
class Code(Domain):
    """One task."""

    name = "code"
    environment: ClassVar[type[Environment]] = CodeEnvironment

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        yield Task("code/0", self.name, "{}")


def test_methods_wait(tmp_path: Path) -> None:
    with BlockingSandbox() as box:
        box.write("file", b"text")
        assert box.read("file") == b"text"
        assert box.exec("cat", stdin=b"in").stdout == "in"
        (tmp_path / "source").write_text("up")
        box.upload(tmp_path / "source", "up")
        box.download("up", tmp_path / "down")
        assert (tmp_path / "down").read_text() == "up"
        box.exec("sleep 60 &")
        box.kill_all()
        snapshot = box.snapshot()
    assert not box.alive
    box.close()
    with pytest.raises(SandboxError, match="it was closed"):
        box.exec("true")
    with BlockingSandbox(snapshot=snapshot) as other:
        assert other.read("file") == b"text"


def test_a_wrong_spec_is_refused() -> None:
    with pytest.raises(SettingsError, match="no folder"):
        BlockingSandbox(SandboxSpec(image="/no/such/folder"))


def test_an_environment_in_its_process_runs_the_code_of_actions_in_a_box() -> None:
    async def test() -> None:
        environment = ProcessEnvironment(Code(), timeout_s=20)
        await environment.reset(0, "{}")
        wrong = await environment.step("import os; print(os.listdir('/home'))")
        assert "FileNotFoundError" in str(wrong.observation)
        right = await environment.step("print(6 * 7)")
        assert (right.reward, right.terminated) == (1.0, True)
        await environment.close()

    asyncio.run(test())


class Careless(Environment):
    """Opens boxes, closes none, and runs an action as a command in the last one."""

    def reset(self, seed: int, task: str) -> tuple[str, Info]:
        self.box = [self.boxes.open(SMALL) for _ in range(2)][-1]
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return self.box.exec(action).stdout, 0.0, False, False, {}


@dataclass(frozen=True)
class Forgotten(Code):
    """Tasks of the careless environment."""

    environment: ClassVar[type[Environment]] = Careless


@pytest.mark.parametrize("command", ["true", "sleep 0.5"])
def test_boxes_that_an_environment_in_a_thread_left_open_end_with_it(command: str) -> None:
    async def test() -> None:
        environment = open_environment(Forgotten(), isolated=False, timeout_s=60)
        await environment.reset(0, "{}")
        (thread,) = [each for each in threading.enumerate() if each.name == "Careless"]
        with contextlib.suppress(EnvironmentTimeoutError):
            environment._timeout_s = 0.2  # type: ignore[attr-defined]
            await environment.step(command)
        environment._timeout_s = 60  # type: ignore[attr-defined]
        await environment.close()
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()

    before = open_descriptors()
    asyncio.run(test())
    assert not left_open(before)
    gc.collect()  # a socket that nobody has closed would warn
