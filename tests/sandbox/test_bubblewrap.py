"""Boxes of bubblewrap: the interface, hostile programs as root and as another user, and ends."""

import asyncio
import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.agent import cgroup
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.bubblewrap import launch
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.sandbox.registry import create_sandbox
from tests.descriptors import left_open, open_descriptors
from tests.sandbox.conformance import SandboxConformance
from tests.sandbox.hostile import TRIALS, host_processes, play_as_another_user, run

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())


class TestBubblewrap(SandboxConformance):
    variant = "bubblewrap"


@pytest.mark.parametrize("name", TRIALS)
def test_a_hostile_program_is_contained(name: str) -> None:
    assert asyncio.run(run(name)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as another user than root already")
@pytest.mark.parametrize("kind", ["plain", "copy-on-write"])
def test_hostile_programs_are_contained_where_another_user_holds_the_boxes(kind: str) -> None:
    assert play_as_another_user(kind) == {}


def test_a_box_ends_with_a_holder_that_is_killed() -> None:
    marker = f"orphan-{os.getpid()}"
    program = f"""
        import asyncio, os, signal
        from rollart_flow.sandbox.registry import create_sandbox

        async def main():
            box = await create_sandbox()
            program = "import time; open('begun', 'w'); time.sleep(999)"
            await box.exec("setsid python3 -c \\"%s\\" {marker} &" % program)
            while not (await box.exec("test -e begun")).ok:
                pass
            print(await box.processes(), flush=True)
            await asyncio.sleep(999)

        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        (left,) = host_processes(marker)
        ended = select.poll()
        ended.register(os.pidfd_open(left), select.POLLIN)
        holder.send_signal(signal.SIGKILL)
        assert ended.poll(10_000), "the box lives on"


def test_many_commands_leave_no_descriptor_behind() -> None:
    async def test() -> None:
        box = await create_sandbox()
        await box.exec("true")
        before = open_descriptors()
        for _ in range(10):
            await asyncio.gather(*(box.exec(["true"]) for _ in range(3)))
        await box.write("file", b"x")
        await box.read("file")
        assert len(left_open(before)) < 10  # threads of other tests may open some
        await box.close()

    before = open_descriptors()
    for _ in range(5):
        asyncio.run(test())
    assert len(left_open(before)) < 5


def test_an_image_is_the_root_file_system(tmp_path: Path) -> None:
    image = Path(tempfile.mkdtemp(prefix="rollart-test-", dir="/var/tmp"))
    image.chmod(0o755)
    shell = Path(os.path.realpath("/bin/sh"))
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    for path in [shell, *(Path(word) for word in listed.split() if word.startswith("/"))]:
        target = image / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (image / "bin").mkdir(exist_ok=True)
    if not (image / "bin" / "sh").exists():
        shutil.copy(shell, image / "bin" / "sh")
    (image / "etc").mkdir()
    (image / "etc" / "release").write_text("of the image")

    async def test() -> None:
        async with await create_sandbox(SandboxSpec(image=str(image))) as box:
            assert (await box.exec("read line < /etc/release; echo $line; echo /*")).stdout
            assert await box.read("/etc/release") == b"of the image"
            assert (await box.exec("ls")).exit_code == 127  # the image has none
            assert (await box.exec("echo x > /etc/release")).exit_code != 0

    try:
        asyncio.run(test())
    finally:
        shutil.rmtree(image)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SandboxSpec(image="/no/such/folder"), "image '/no/such/folder' is no folder"),
        (SandboxSpec(workdir="work"), "'work' is no absolute path"),
        (SandboxSpec(workdir="/work/../etc"), "is no absolute path"),
        (SandboxSpec(mounts={"/data": "/no/such"}), "'/no/such' does not exist"),
        (SandboxSpec(socket="/etc/passwd"), "'/etc/passwd' is no Unix socket"),
        (SandboxSpec(env={"A=B": "c"}), "'A=B' is no name"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line(spec: SandboxSpec, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        asyncio.run(create_sandbox(spec))


@pytest.mark.parametrize("name", ["memory_mb", "disk_mb", "processes", "cpus", "lifetime_s"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        SandboxLimits(**{name: 0})


def test_an_unknown_variant_is_named() -> None:
    with pytest.raises(SettingsError, match=r"did you mean bubblewrap\?"):
        asyncio.run(create_sandbox(variant="bublewrap"))


def test_a_box_that_bubblewrap_refuses_is_an_error_of_the_box() -> None:
    spec = SandboxSpec(mounts={"/proc/self/x": "/etc"})
    with pytest.raises(SandboxError, match="did not start"):
        asyncio.run(create_sandbox(spec))


@pytest.mark.parametrize(
    "failing",
    [
        "os.pipe2",
        "os.pidfd_open",
        "subprocess.Popen",
        *(
            f"{launch.__name__}.{name}"
            for name in ("filter_program", "memory_file", "command_line")
        ),
    ],
)
def test_a_box_that_fails_while_it_starts_leaves_nothing(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailedHereError(OSError):
        pass

    def fail(*given: object, **named: object) -> None:
        raise FailedHereError("no more of these")

    async def test() -> None:
        before = open_descriptors()
        with monkeypatch.context() as patched:
            patched.setattr(failing, fail)
            with pytest.raises(SandboxError, match="can be started: no more of these"):
                await create_sandbox()
        assert not left_open(before)
        gc.collect()  # a socket that nobody has closed would warn

    groups = cgroups()
    asyncio.run(test())
    assert cgroups() == groups


def cgroups() -> set[Path]:
    """Control groups of the boxes of this process."""
    parents = {*(cgroup._parents(cgroup.MOUNT, Path("/proc/self/cgroup")) or {}).values()}
    return {path for parent in parents for path in parent.glob(f"rollart-{os.getpid()}-*")}
