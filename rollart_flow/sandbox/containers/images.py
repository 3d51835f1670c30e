"""Images of boxes: the one that shows this host's `/usr`, and those that a spec names.

The image of the host is empty but for folders, links and a few files of `/etc`; its system folders
are mounted. It is imported once, under a name that holds the digest of its contents, so that no
registry is needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from rollart_flow.errors import SandboxError, SettingsError
from rollart_flow.sandbox.bubblewrap.roots import SYSTEM_ETC, SYSTEM_FOLDERS
from rollart_flow.sandbox.containers.client import PULL_S, Client

_FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "usr", "work")


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image that is on this machine."""

    identity: str
    """Name or digest that `run` takes."""
    env: dict[str, str]
    """Variables that the image sets."""


def host_image(client: Client, runtime: Path) -> ContainerImage:
    """Return the image of this host, imported if it is not there.

    Args:
        client: Docker's or Podman's.
        runtime: folder of `runtime.runtime_folder`.

    Raises:
        SandboxError: the image cannot be imported.
    """
    archive = _host_archive(runtime)
    name = f"rollart-flow/host:{hashlib.sha256(archive).hexdigest()[:16]}"
    try:
        client.call_now("image", "inspect", name)
    except SandboxError:
        client.call_now("import", "-", name, stdin=archive)
    return ContainerImage(name, {})


async def named_image(client: Client, name: str) -> ContainerImage:
    """Return the image of a name, pulled if it is not there.

    Raises:
        SettingsError: there is no such image here, and it cannot be pulled.
    """
    ask = ("image", "inspect", "--format", "{{.Id}} {{json .Config.Env}}", name)
    try:
        found = await client.call(*ask)
    except SandboxError:
        try:
            await client.call("pull", "--quiet", name, timeout_s=PULL_S)
            found = await client.call(*ask)
        except SandboxError as error:
            raise SettingsError(
                f"sandbox: image {name!r} is not here and cannot be pulled: {error}"
            ) from error
    identity, _, env = found.partition(" ")
    return ContainerImage(identity, dict(line.split("=", 1) for line in json.loads(env) or ()))


async def is_here(client: Client, image: ContainerImage) -> bool:
    """Return whether the machine still has an image."""
    try:
        await client.call("image", "inspect", image.identity)
    except SandboxError:
        return False
    return True


def host_mounts() -> dict[str, str]:
    """Return what a box on this host's image sees of the host: path in the box to host path."""
    folders = [f"/{name}" for name in SYSTEM_FOLDERS if not os.path.islink(f"/{name}")]
    return {path: path for path in ("/usr", *folders, *SYSTEM_ETC) if os.path.exists(path)}


def _host_archive(runtime: Path) -> bytes:
    """Return the root file system of the image of this host as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name in SYSTEM_FOLDERS:
            if os.path.islink(f"/{name}"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                archive.addfile(link)
        for path in sorted((runtime / "etc").iterdir()):
            data = path.read_bytes()
            file = tarfile.TarInfo(f"etc/{path.name}")
            file.size = len(data)
            archive.addfile(file, io.BytesIO(data))
    return buffer.getvalue()
