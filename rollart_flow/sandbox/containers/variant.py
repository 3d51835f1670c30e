"""Docker and Podman as variants of `SANDBOXES`; they differ in the program alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from functools import cache

from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.agent.box import AgentSandbox
from rollart_flow.sandbox.agent.connection import Connection
from rollart_flow.sandbox.agent.runtime import runtime_folder
from rollart_flow.sandbox.base import Sandbox, SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.bubblewrap.command_line import box_environ, check_spec
from rollart_flow.sandbox.containers.client import Client
from rollart_flow.sandbox.containers.command_line import run_arguments
from rollart_flow.sandbox.containers.images import (
    ContainerImage,
    host_image,
    host_mounts,
    is_here,
    named_image,
)
from rollart_flow.sandbox.containers.launch import Container, sweep_containers
from rollart_flow.sandbox.images.tree import NOBODY
from rollart_flow.sandbox.variant import SandboxVariant

_SHOW_LIMIT = """
from pathlib import Path
group = Path("/sys/fs/cgroup")
files = group / "memory.max", group / "memory" / "memory.limit_in_bytes"
print(*(file.read_text().strip() for file in files if file.exists()))
"""
"""Program that prints the memory that its container may use at most [bytes]."""


class ContainerVariant(SandboxVariant):
    """Boxes that are containers of a program on this machine.

    Args:
        client: the program.
        package: Debian's package of the program.
    """

    def __init__(self, client: Client, package: str) -> None:
        self._client = client
        self._package = package
        self._images: dict[str | None, ContainerImage] = {}

    def version(self) -> str | None:
        return _version(self._client)

    def problem(self) -> str:
        return _problem(self._client, self._package)

    async def create(self, spec: SandboxSpec, snapshot: SandboxSnapshot | None) -> Sandbox:
        check_spec(spec)
        if spec.writable:
            raise SettingsError(
                f"sandbox={self._client.program!r}: the root of a container stays read-only; "
                "leave out writable=True, or take bubblewrap"
            )
        image, container, connection = await self._start(spec)
        box = AgentSandbox(spec, container, connection, box_environ(spec, image.env))
        try:
            if snapshot is not None:
                await box.restore(snapshot)
        except BaseException:
            await box.close()
            raise
        return box

    def sweep(self) -> int:
        return sweep_containers(self._client)

    async def _start(self, spec: SandboxSpec) -> tuple[ContainerImage, Container, Connection]:
        """Start a container; if its image has been removed meanwhile, it is made again."""
        runtime = await asyncio.to_thread(runtime_folder)
        seen = {} if spec.image is not None else host_mounts()
        known = self._images.get(spec.image)
        image = known or await self._found(spec.image)
        try:
            return image, *await Container.start(self._client, spec, image, runtime, seen)
        except SandboxError:
            if known is None or await is_here(self._client, known):
                raise
        image = await self._found(spec.image)
        return image, *await Container.start(self._client, spec, image, runtime, seen)

    async def _found(self, name: str | None) -> ContainerImage:
        """Look for the image of a name, or of this host, and remember it."""
        if name is None:
            found = await asyncio.to_thread(host_image, self._client, runtime_folder())
        else:
            found = await named_image(self._client, name)
        self._images[name] = found
        return found


@cache
def _version(client: Client) -> str | None:
    if shutil.which(client.program) is None:
        return None
    try:
        return client.call_now("--version").split(" version ")[-1].split(",")[0]
    except SandboxError:
        return None


@cache
def _problem(client: Client, package: str) -> str:
    """Return why no box can be made here; one is tried, in which Python reads its limit."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    if shutil.which(client.program) is None:
        return f"{client.program} is not installed; install the package {package}"
    try:
        client.call_now("ps", "--quiet")
    except SandboxError as error:
        return f"{error}; start it, or let this user call it"
    try:
        runtime = runtime_folder()
        image = host_image(client, runtime)
        name = f"rollart-{os.getpid()}-check"
        run = run_arguments(client, SandboxSpec(), name, image.identity, runtime, host_mounts())
        said = client.call_now(*run[: run.index("-I")], "-I", "-S", "-c", _SHOW_LIMIT)
    except SandboxError as error:
        return f"no box starts here ({error}); it has to run on this machine, with control groups"
    limits = SandboxSpec().limits
    if not said.isdigit() or int(said) > (limits.memory_mb + limits.disk_mb) << 20:
        return (
            f"{client.program} does not bound the memory of its boxes; for another user than "
            "root it needs control groups of version 2, of which memory, pids and cpu are delegated"
        )
    return ""


DOCKER = ContainerVariant(
    Client("docker", f"uid={NOBODY},gid={NOBODY}", ("--tmpfs", "/sys/kernel:ro,size=4k")),
    "docker.io",
)
PODMAN = ContainerVariant(
    Client(
        "podman",
        "notmpcopyup,U",
        ("--security-opt", "mask=/sys/kernel", "--read-only-tmpfs=false"),
    ),
    "podman",
)
