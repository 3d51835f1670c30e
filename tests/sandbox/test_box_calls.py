"""Boxes in another process: an environment sees no difference to boxes of its own."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.envs.adapter import open_environment
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError
from rollart_flow.sandbox.base import Sandbox
from rollart_flow.sandbox.box_calls import box_answer, error_answer, spec_of
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.sandbox.registry import create_sandbox
from tests.sandbox.probes import Probe

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


class Server:
    """Answers calls of one environment with boxes of this process."""

    def __init__(self) -> None:
        self.boxes: dict[int, Sandbox] = {}
        self.calls: list[str] = []
        self.released = False

    async def __call__(self, call: Any, data: bytes) -> tuple[object, bytes]:
        self.calls.append(call["call"])
        if call["call"] == "open":
            try:
                self.boxes[call["box"]] = await create_sandbox(
                    *spec_of(call, data)[:1], snapshot=spec_of(call, data)[1]
                )
            except Exception as error:  # noqa: BLE001
                return error_answer(error), b""
            return {"value": None}, b""
        box = self.boxes[call["box"]]
        if call["call"] == "close":
            await box.close()
            return {"value": None}, b""
        return await box_answer(box, call, data)

    def release(self) -> None:
        self.released = True

    async def close(self) -> None:
        for box in self.boxes.values():
            await box.close()


def steps(folder: Path) -> list[str]:
    """Everything that an environment may do with a box, and how it can go wrong."""
    (folder / "tree" / "inner").mkdir(parents=True, exist_ok=True)
    (folder / "tree" / "inner" / "file").write_text("inside")
    (folder / "one").write_bytes(bytes(range(256)))
    return [
        "box.exec('echo out; echo err >&2; exit 3').stdout",
        "box.exec('echo out; echo err >&2; exit 3').stderr",
        "box.exec(['cat'], stdin=b'\\x00\\xff\\n', env={'A': 'b'}).exit_code",
        "box.exec('echo $A; pwd', env={'A': 'grüße'}, cwd='/tmp').stdout",
        "box.exec('sleep 60', timeout_s=0.2).killed_by",
        "box.exec([])",
        "box.exec(['/no/such/program']).exit_code",
        "box.write('a/b', b'\\x00\\xff' * 100_000)",
        "len(box.read('a/b')), box.read('a/b')[:3]",
        "box.read('a/b', max_bytes=10)",
        "box.read('missing')",
        "box.write('/proc/nothing', b'')",
        f"box.upload(Path({str(folder / 'one')!r}), 'one')",
        f"box.upload(Path({str(folder / 'tree')!r}), 'deep/tree')",
        f"box.upload(Path({str(folder / 'nothing')!r}), 'deep/tree')",
        "box.exec('cat deep/tree/inner/file; wc -c < one').stdout",
        f"box.download('deep', Path({str(folder / 'MODE' / 'deep')!r}))",
        f"Path({str(folder / 'MODE' / 'deep' / 'tree' / 'inner' / 'file')!r}).read_text()",
        f"box.download('missing', Path({str(folder / 'MODE' / 'missing')!r}))",
        f"box.download('one', Path({str(folder / 'MODE' / 'deep')!r}))",
        "box.exec('ln -s /etc outside').exit_code",
        f"box.download('outside', Path({str(folder / 'MODE' / 'outside')!r}))",
        "self.keep() > 0, self.kept.spec == box.spec if hasattr(box, 'spec') else True",
        "boxes.open(snapshot=self.kept).read('one')[:4]",
        "boxes.open(SandboxSpec(image='/no/such/folder'))",
        "boxes.open(SandboxSpec(mounts={'relative': '/usr'}))",
        "box.exec('sleep 60 & sleep 60 & :').exit_code, box.processes()",
        "box.kill_all()",
        "box.write('full', b'x' * (9 << 20))",
        "box.alive",
        "box.close(), box.close(), box.alive",
        "box.exec('true').exit_code",
        "box.close()",
    ]


async def told(environment: AsyncEnvironment, folder: Path, mode: str) -> list[str]:
    """What an environment says to each step, without times and addresses."""
    await environment.reset(0, "{}")
    said = []
    for step in steps(folder):
        shown, *_ = await environment.step(step.replace("MODE", mode))
        said.append(re.sub(r"0x[0-9a-f]+", "", str(shown).replace(mode, "MODE")))
    await environment.close()
    return said


async def compared(folder: Path, make: Callable[[Server], AsyncEnvironment]) -> Server:
    own = await told(open_environment(Probe()), folder, "own")
    server = Server()
    try:
        called = await told(make(server), folder, "called")
    finally:
        await server.close()
    assert server.released
    assert called == own
    assert len({*own}) > 20
    return server


def test_an_environment_in_its_process_sees_no_difference(tmp_path: Path) -> None:
    async def test() -> None:
        server = await compared(tmp_path, lambda server: open_environment(Probe(), boxes=server))
        assert {"open", "exec", "read", "write", "pack", "unpack", "snapshot", "close"} <= {
            *server.calls
        }

    asyncio.run(test())


def test_an_environment_in_a_thread_sees_no_difference(tmp_path: Path) -> None:
    async def test() -> None:
        await compared(
            tmp_path, lambda server: open_environment(Probe(), boxes=server, isolated=False)
        )

    asyncio.run(test())


def test_threads_of_an_environment_take_turns() -> None:
    async def test() -> None:
        server = Server()
        environment = open_environment(Probe(), boxes=server)
        await environment.reset(0, "{}")
        shown, *_ = await environment.step("self.aside(box)")
        assert str(shown).count("aside") == 4
        await environment.close()
        await server.close()

    asyncio.run(test())


def test_a_timeout_in_the_middle_of_a_call_ends_the_process_and_the_call() -> None:
    async def test() -> None:
        ended = asyncio.Event()

        class Never(Server):
            async def __call__(self, call: Any, data: bytes) -> tuple[object, bytes]:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    ended.set()
                raise AssertionError

        server = Never()
        environment = open_environment(Probe(), boxes=server, timeout_s=1.0)
        with pytest.raises(EnvironmentTimeoutError, match="no answer within 1 s"):
            await environment.reset(0, "{}")
        assert ended.is_set()
        await environment.close()
        assert server.released

    asyncio.run(test())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("boom"), "ProbeEnvironment.reset: the sandbox failed: RuntimeError: boom"),
        (KeyError("x"), "ProbeEnvironment.reset: the sandbox failed: KeyError: 'x'"),
    ],
)
def test_an_error_that_nobody_expects_is_one_of_the_sandbox(error: Exception, said: str) -> None:
    async def test() -> None:
        class Refuse(Server):
            async def __call__(self, call: Any, data: bytes) -> tuple[object, bytes]:
                return error_answer(error), b""

        environment = open_environment(Probe(), boxes=Refuse())
        with pytest.raises(EnvironmentFailedError, match=re.escape(said)):
            await environment.reset(0, "{}")

    asyncio.run(test())
