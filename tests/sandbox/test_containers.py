"""Boxes of Docker and Podman: the interface, hostile programs, images, and ends."""

import asyncio
import gc
import io
import os
import select
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.agent.runtime import runtime_folder
from rollart_flow.sandbox.base import SandboxLimits, SandboxSpec
from rollart_flow.sandbox.boxes import LocalBoxes
from rollart_flow.sandbox.containers import command_line, images
from rollart_flow.sandbox.containers import variant as variants
from rollart_flow.sandbox.containers.client import Client, message
from rollart_flow.sandbox.containers.command_line import run_arguments
from rollart_flow.sandbox.containers.launch import Container, _listening
from rollart_flow.sandbox.containers.variant import DOCKER, PODMAN, ContainerVariant
from rollart_flow.sandbox.registry import create_sandbox
from tests.descriptors import left_open, open_descriptors
from tests.sandbox import daemons
from tests.sandbox.conformance import SandboxConformance
from tests.sandbox.hostile import TRIALS, host_processes, play_as_another_user, run

BOTH = ["docker", "podman"]
LABEL = "from rollart_flow.sandbox.owner import owner_label; print(owner_label())"


@pytest.fixture(scope="module")
def docker() -> Iterator[None]:
    with daemons.docker() as missing:
        variants._problem.cache_clear()
        if missing or (missing := DOCKER.problem()):
            pytest.skip(missing)
        yield


@pytest.fixture(scope="module")
def podman() -> Iterator[None]:
    with daemons.podman() as missing:
        variants._problem.cache_clear()
        if missing or (missing := PODMAN.problem()):
            pytest.skip(missing)
        yield


@pytest.fixture(params=BOTH)
def variant(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


@pytest.mark.whole
@pytest.mark.usefixtures("docker")
class TestDocker(SandboxConformance):
    variant = "docker"


@pytest.mark.usefixtures("podman")
class TestPodman(SandboxConformance):
    variant = "podman"


@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.usefixtures("podman")
def test_a_hostile_program_is_contained(name: str) -> None:
    assert asyncio.run(run(name, "podman")) == ""


@pytest.mark.whole
@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.usefixtures("docker")
def test_docker_contains_a_hostile_program(name: str) -> None:
    assert asyncio.run(run(name, "docker")) == ""


@pytest.mark.whole
@pytest.mark.usefixtures("docker")
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as another user than root already")
def test_docker_contains_hostile_programs_where_another_user_calls_it() -> None:
    assert play_as_another_user("plain", "docker") == {}


def test_a_container_is_gone_with_a_holder_that_is_killed(variant: str) -> None:
    marker = f"orphan-{variant}-{os.getpid()}"
    program = f"""
        import asyncio
        from rollart_flow.sandbox.registry import create_sandbox

        async def main():
            box = await create_sandbox(variant={variant!r})
            sleeper = 'open("begun", "w"); import time; time.sleep(999)'
            begun = "while ! test -e begun; do :; done"
            await box.exec(f"setsid python3 -c '{{sleeper}}' {marker} & {{begun}}")
            print(await box.processes(), flush=True)
            await asyncio.sleep(999)

        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            left = host_processes(marker)
            ended = [select.poll() for _ in left]
            for pid, poll in zip(left, ended, strict=True):
                poll.register(os.pidfd_open(pid), select.POLLIN)
        finally:
            holder.send_signal(signal.SIGKILL)
        assert left
        assert all(poll.poll(10_000) for poll in ended), "the box lives on"
    while containers(variant):  # it is being removed
        pass


def test_nothing_is_left_of_boxes(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = tempfile.mkdtemp, list[str]()

    def noted(**place: str) -> str:
        made.append(make(**place))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)

    async def test() -> None:
        box, other = await asyncio.gather(*(create_sandbox(variant=variant) for _ in range(2)))
        assert len(containers(variant)) == 2
        await asyncio.gather(box.close(), box.close(), other.close())
        creating = asyncio.create_task(create_sandbox(variant=variant))
        for _ in range(1000):
            if containers(variant):
                break
            await asyncio.sleep(0)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating

    before = open_descriptors()
    asyncio.run(test())
    assert containers(variant) == []
    assert made
    assert not any(map(os.path.exists, made))
    assert not left_open(before)


@pytest.mark.parametrize("turns", range(8))
def test_a_creation_that_is_cancelled_while_the_agent_connects_leaves_no_socket(
    turns: int, tmp_path: Path
) -> None:
    async def test() -> None:
        container = Container(Client("none", ""), "name")
        with _listening(tmp_path / "socket") as listening:
            before = open_descriptors()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
                connecting = asyncio.create_task(container._connected(listening))
                await asyncio.sleep(0)
                agent.connect(str(tmp_path / "socket"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
            assert not left_open(before)
        gc.collect()  # a socket that nobody has closed would warn

    asyncio.run(test())


def test_a_container_of_a_dead_process_is_swept_and_no_other(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"docker": DOCKER, "podman": PODMAN}[variant]
    client = kind._client
    image = images.host_image(client, runtime_folder())

    def start(name: str) -> str:
        run = run_arguments(
            client, SandboxSpec(), name, image.identity, runtime_folder(), images.host_mounts()
        )
        waits = ["-I", "-S", "-c", "import time; time.sleep(600)"]
        return client.call_now(run[0], "--detach", *run[1 : run.index("-I")], *waits)

    ended = subprocess.run(
        [sys.executable, "-c", LABEL], capture_output=True, text=True, check=True
    )
    with monkeypatch.context() as patched:
        patched.setattr(command_line, "owner_label", ended.stdout.strip)
        start("rollart-of-a-dead-process")
        patched.setattr(command_line, "process_namespace", lambda: "1")
        elsewhere = start("rollart-of-another-namespace")
    mine = start("rollart-of-this-process")
    try:
        assert kind.sweep() == 1
        left = client.call_now("ps", "--all", "--quiet", "--no-trunc").split()
        assert {*left} == {mine, elsewhere}
        assert kind.sweep() == 0
    finally:
        client.call_now("rm", "--force", mine, elsewhere)


def test_an_image_is_the_root_file_system(variant: str) -> None:
    """It needs nothing but a shell; its variables are seen, its work folder is covered."""
    shell = Path(os.path.realpath("/bin/sh"))
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        archive.add(shell, "bin/sh")
        for path in libraries:
            archive.add(path, path.lstrip("/"))
        for name, text in (("etc/release", b"of the image"), ("work/old", b"")):
            file = tarfile.TarInfo(name)
            file.size = len(text)
            archive.addfile(file, io.BytesIO(text))
    client = Client(variant, "")
    change = ("--change", "ENV GREETING=hello", "--change", "ENV LANG=xx")
    client.call_now("import", *change, "-", "tiny:1", stdin=buffer.getvalue())

    async def test() -> None:
        spec = SandboxSpec(image="tiny:1", env={"LANG": "C"})
        async with await create_sandbox(spec, variant=variant) as box:
            result = await box.exec("echo $GREETING $LANG; echo *; ls")
            assert result.stdout == "hello C\n*\n"
            assert result.exit_code == 127  # the image has no ls
            assert await box.read("/etc/release") == b"of the image"
            snapshot = await box.snapshot()
        async with await create_sandbox(variant=variant, snapshot=snapshot) as box:
            assert (await box.exec("read line < /etc/release; echo $line")).stdout

    try:
        asyncio.run(test())
    finally:
        client.call_now("image", "rm", "--force", "tiny:1")


def test_an_image_that_was_removed_is_made_again(variant: str) -> None:
    async def test() -> None:
        for _ in range(2):
            box = await create_sandbox(variant=variant)
            assert (await box.exec("echo works")).stdout == "works\n"
            await box.close()
            client.call_now("image", "rm", "--force", image.identity)

    client = Client(variant, "")
    image = images.host_image(client, runtime_folder())
    asyncio.run(test())


def test_an_image_that_is_nowhere_is_refused(variant: str) -> None:
    spec = SandboxSpec(image="localhost:1/no/such:image")
    with pytest.raises(SettingsError, match="'localhost:1/no/such:image' is not here and cannot"):
        asyncio.run(create_sandbox(spec, variant=variant))


def test_a_container_that_does_not_start_is_an_error_of_the_box(variant: str) -> None:
    spec = SandboxSpec(mounts={"/proc/self/x": "/etc"})
    with pytest.raises(SandboxError, match=variant):
        asyncio.run(create_sandbox(spec, variant=variant))
    assert containers(variant) == []


def test_a_variable_chooses_the_variant(
    docker: None, podman: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BOTH:
        monkeypatch.setenv("ROLLART_SANDBOX", name)
        box = LocalBoxes().open()
        assert len(containers(name)) == 1
        box.close()
        assert containers(name) == []


def containers(variant: str) -> list[str]:
    """Identities of the containers that the program knows of, ended ones too."""
    return Client(variant, "").call_now("ps", "--all", "--quiet").split()


def test_a_missing_program_or_daemon_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = ContainerVariant(Client("no-such-program", ""), "a-package")
    assert absent.problem() == "no-such-program is not installed; install the package a-package"
    assert absent.version() is None
    program = tmp_path / "silent"
    program.write_text("#!/bin/sh\necho 'Error: no daemon.' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    silent = ContainerVariant(Client("silent", ""), "x")
    assert silent.problem() == "silent: no daemon; start it, or let this user call it"


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", ""])
def test_a_program_that_ignores_limits_makes_no_boxes(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does Podman of another user than root where control groups are of version 1."""
    program = tmp_path / "careless"
    program.write_text(f"#!/bin/sh\ncase $1 in run) echo {limit};; import) echo sha256:1;; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    careless = ContainerVariant(Client("careless", limit), "x")
    assert careless.problem().startswith("careless does not bound the memory of its boxes; ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'docker: Error response from daemon: invalid tmpfs option ["U"]\n\n'
            "Run 'docker run --help' for more information\n",
            'invalid tmpfs option ["U"]',
        ),
        ("Error: no such container\n", "no such container"),
        ('time="12:00" level=error msg="no \\"home\\" of 9"\n', 'no "home" of 9'),
        ("", "it fails without a message"),
    ],
)
def test_a_message_is_the_line_that_says_what_went_wrong(text: str, said: str) -> None:
    assert message(text) == said


def test_limits_and_paths_are_arguments() -> None:
    limits = SandboxLimits(memory_mb=100, disk_mb=28, processes=10, cpus=0.5)
    spec = SandboxSpec(limits=limits, mounts={"/data": '/a,b "c"'}, workdir="/testbed")
    arguments = run_arguments(Client("p", "own"), spec, "n", "i", runtime_folder(), {})
    joined = " ".join(arguments)
    assert "--memory 128m --memory-swap 128m --cpus 0.50 --pids-limit 12" in joined
    assert "--tmpfs /testbed:rw,exec,nosuid,nodev,size=28m,mode=1777,own" in joined
    assert 'type=bind,"source=/a,b ""c""",target=/data,readonly' in arguments
