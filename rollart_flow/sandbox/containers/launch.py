"""The start of a container, and its end.

The holder listens at a Unix socket in a folder that only its user may enter; the container sees the
socket alone. Once the agent has connected, the socket is gone.

Invariant: after `end` the container is removed, also if it never became ready. If the holder dies,
the agent ends with its connection and the container with the agent; it is removed by itself then.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import socket
import struct
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.agent.cgroup import ControlGroup, group_of
from rollart_flow.sandbox.agent.connection import Connection
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.sandbox.bubblewrap.launch import READY_S
from rollart_flow.sandbox.containers.client import Client
from rollart_flow.sandbox.containers.command_line import (
    AGENT_PATH,
    NAMESPACE_LABEL,
    OWNER_LABEL,
    run_arguments,
)
from rollart_flow.sandbox.containers.images import ContainerImage
from rollart_flow.sandbox.owner import is_owned, owner_label, process_namespace, sweep_folders
from rollart_flow.timeouts import timeout

_REMOVALS, _REMOVAL_S = 100, 0.05
_SOCKETS, _PREFIX = "/var/tmp", "rollart-agent-"
"""Place and names of the folders with sockets that no agent has connected to yet."""


class Container:
    """A container that was started, to be ended."""

    def __init__(self, client: Client, name: str) -> None:
        self.group: ControlGroup | None = None
        self._client = client
        self._name = name
        self._ended = False

    @classmethod
    async def start(
        cls,
        client: Client,
        spec: SandboxSpec,
        image: ContainerImage,
        runtime: Path,
        seen: Mapping[str, str],
    ) -> tuple[Container, Connection]:
        """Start a container; return it with the connection to its agent, which is ready.

        Args:
            client: Docker's or Podman's.
            spec: contents and limits.
            image: root file system.
            runtime: folder of `runtime.runtime_folder`.
            seen: files of the host that the box sees beside those of the spec.

        Raises:
            SandboxError: it did not start, or its agent did not answer.
        """
        container = cls(client, f"rollart-{os.getpid()}-{secrets.token_hex(6)}")
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner_label()}-", dir=_SOCKETS))
        try:
            with _listening(folder / "socket") as listening:
                sockets = {AGENT_PATH: str(folder / "socket"), **seen}
                name = container._name
                run = run_arguments(client, spec, name, image.identity, runtime, sockets)
                await client.call(run[0], "--detach", *run[1:])
                connection = await container._connected(listening)
        except BaseException:
            await container.end()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return container, connection

    async def end(self) -> None:
        """Kill and remove the container, and wait until it is gone. May be called twice."""
        if self._ended:
            return
        removing = asyncio.create_task(self._remove())
        try:
            await asyncio.shield(removing)
        except asyncio.CancelledError:
            await removing
            raise

    async def _connected(self, listening: socket.socket) -> Connection:
        """Wait for the agent, and for its first message."""
        with ExitStack() as undone:
            try:
                async with timeout(READY_S):
                    await _readable(listening)
                    ours, _ = listening.accept()
                    undone.callback(ours.close)
                    pid, _, _ = struct.unpack(
                        "3i", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    )
                    self.group = group_of(Path(f"/proc/{pid}/cgroup"))
                    connection = Connection(ours)
                    undone.callback(connection.close)
                    await connection.ready
            except TimeoutError:
                raise SandboxError(f"the sandbox was not ready after {READY_S:g} s") from None
            undone.pop_all()
        return connection

    async def _remove(self) -> None:
        """Remove the container; one that ends at this moment removes itself."""
        with suppress(SandboxError):
            await self._client.call("rm", "--force", "--volumes", self._name)
            self._ended = True
            return
        ask = ("ps", "--all", "--quiet", "--filter", f"name=^{self._name}$")
        for _ in range(_REMOVALS):
            if not await self._client.call(*ask):
                self._ended = True
                return
            await asyncio.sleep(_REMOVAL_S)
        raise SandboxError(f"container {self._name} cannot be removed")


def sweep_containers(client: Client) -> int:
    """Remove containers whose holder has died, and its folders; return how many containers.

    A container of another process namespace stays, since nothing tells whether its holder lives.
    """
    sweep_folders(Path(_SOCKETS), _PREFIX)
    here = f"label={NAMESPACE_LABEL}={process_namespace()}"
    shown = "{{.ID}} {{.Labels}}"  # "name=label,..." of Docker, "map[name:label ...]" of Podman
    listed = client.call_now("ps", "--all", "--filter", here, "--format", shown)
    owned = re.findall(rf"^(\w+) .*\b{re.escape(OWNER_LABEL)}[=:](\d+-\d+)", listed, re.MULTILINE)
    swept = 0
    for identity, label in owned:
        if not is_owned(label):
            with suppress(SandboxError):  # it removes itself, or another pool does
                client.call_now("rm", "--force", "--volumes", identity)
                swept += 1
    return swept


async def _readable(listening: socket.socket) -> None:
    """Wait for a connection.

    `loop.sock_accept` drops the one that it has taken if its caller is cancelled at that moment.
    """
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(listening, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(listening)


def _listening(path: Path) -> socket.socket:
    """Return a socket that listens at a path, and that any user who sees it may connect to."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listening.setblocking(False)
        listening.bind(str(path))
        path.chmod(0o666)
        listening.listen(1)
    except BaseException:
        listening.close()
        raise
    return listening
