"""Unchanged programs complete a task in a box that has no way out but the gateway."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_flow import Harness
from rollart_flow.envs.base import Domain
from rollart_flow.envs.workspace import NO_EQUIPMENT, AttemptEnd, Equipment, Workspace
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.harness.environment import AgentDomain, AgentEnvironment
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.box import Box
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.types import Split, Task
from tests.harness.clients import TASK, delivered, dialect, workplace
from tests.harness.playing import FORGETS, installed, report, rows_of
from tests.sandbox.daemons import podman

pytestmark = pytest.mark.whole


class WordFile(Workspace):
    """A folder with in.txt, whose text out.txt should have."""

    def open(self, seed: int, task: str, equipment: Equipment = NO_EQUIPMENT) -> tuple[str, Box]:
        self.begin()
        limits = SandboxLimits(memory_mb=2048, disk_mb=512, processes=256)
        box = self.boxes.open(equipment.added(SandboxSpec(limits=limits)))
        box.write("in.txt", b"seven\n")
        return TASK, box

    def judged(self, box: Box, *, last: bool) -> AttemptEnd:
        wrote = box.exec(["cmp", "in.txt", "out.txt"]).ok
        return AttemptEnd(float(wrote), {"success": wrote})


class WordDomain(Domain):
    name = "words"
    environment = AgentEnvironment

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return iter(())

    def workspace(self) -> Workspace:
        return WordFile()


def completes_in_a_box(name: str, folder: Path, sandbox: str) -> None:
    """Have a program work in a box of a kind; the task is solved, and nothing is lost."""
    place = workplace(name, folder, *dialect(name, "/work").task)
    judge = json.dumps({"judge": {"last": True, "said": []}})

    async def run() -> tuple[dict[str, Any], float]:
        async with GatewayServer() as server:
            key = server.open(place.rig.session)
            domain = AgentDomain(
                WordDomain(), Harness(name), str(server.socket), sandbox,
                place.rig.limits.context_tokens,
            )  # fmt: skip
            environment = domain.make()
            try:
                await asyncio.to_thread(environment.reset, 0, "")
                ran = await asyncio.to_thread(environment.step, json.dumps({"run": key}))
                end = await asyncio.to_thread(environment.step, judge)
            finally:
                await asyncio.to_thread(environment.close)
        return dict(ran[-1]), end[1]

    info, reward = asyncio.run(run())
    rows = asyncio.run(rows_of(place))
    line = report(place, [*rows])
    assert info["exit_code"] == 0, (info, line)
    assert reward == 1.0, (info, line)
    assert [each.parent for each in place.rig.exchanges] == FORGETS.get(name, [None, 0, 1, 2, 3])
    assert (len(rows), delivered(rows)) == (1 + (name in FORGETS), 1.0), line


@pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())
@pytest.mark.parametrize("name", installed())
def test_a_program_works_in_a_box_without_a_network(name: str, tmp_path: Path) -> None:
    completes_in_a_box(name, tmp_path, "bubblewrap")


@pytest.fixture(scope="module")
def podman_store() -> Iterator[None]:
    """A store of containers that this process keeps, as it keeps its images."""
    with podman() as problem:
        if problem:
            pytest.skip(problem)
        yield


@pytest.mark.usefixtures("podman_store")
@pytest.mark.parametrize("name", installed("claude-code", "codex", "pi", "mini-swe-agent"))
def test_a_program_works_in_a_container_of_podman(name: str, tmp_path: Path) -> None:
    """Single files, scripts with their own Node.js, and Python of the image."""
    completes_in_a_box(name, tmp_path, "podman")
