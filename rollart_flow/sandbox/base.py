"""The interface of a sandbox: a box with its own files and processes for code that nobody trusts.

Every variant (`registry`) gives the same guarantees. Code in a box reaches no network, no file of
the host beyond what the box shows read-only, and no process outside. It cannot use more memory,
processes or disk than `SandboxLimits` says, and it ends with the box. Two kinds of failure differ:

- A command that fails, is killed by a limit or does not exist has a `CommandResult`.
- A box that fails raises `SandboxError`; close it and take another one.

Invariant: `close` leaves no process, mount or file of the box on the host. If the process that
holds the box dies, the box ends as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from rollart_flow.errors import SandboxFileError
from rollart_flow.sandbox.archives import ENTRY, packed_file, unpack_entry
from rollart_flow.validation import check_count, check_number

MAX_READ_BYTES = 100 << 20
"""Largest file that `Sandbox.read` returns unless told otherwise [bytes]."""


class KilledBy(StrEnum):
    """The limit that ended a command."""

    NOTHING = ""
    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The bounds of one box, over everything that runs in it.

    Raises:
        SettingsError: a bound is not positive.
    """

    memory_mb: int = 512
    """Memory of all processes together, or of each one where the host has no writable cgroup
    [MiB]."""
    disk_mb: int = 256
    """Size of all files that are written in the box; they are kept in memory [MiB]."""
    processes: int = 128
    """Number of processes and threads at any one time."""
    cpus: float = 1.0
    """Cores that the box may use; bounded only where the host has a writable cgroup."""
    lifetime_s: float = 3600.0
    """Time after which the box ends by itself, whatever its holder does [s]."""
    output_kb: int = 64
    """Output of a command that is kept of each stream, its beginning and its end [KiB]."""

    def __post_init__(self) -> None:
        for name in ("memory_mb", "disk_mb", "processes", "output_kb"):
            check_count(f"sandbox.{name}", getattr(self, name), low=1)
        for name in ("cpus", "lifetime_s"):
            check_number(f"sandbox.{name}", getattr(self, name), low=0, open_low=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The contents of a new box."""

    image: str | None = None
    """The root file system. For bubblewrap a folder, or an image of the cache (`images.cache`) as
    `sha256:...` or `NAME@sha256:...`; for containers the name of an image. None means the host's
    `/usr`, read-only, with this Python and its standard library."""
    writable: bool = False
    """Whether the box may change the files of its image, for itself alone: what it writes is
    bounded by `disk_mb` and vanishes with it."""
    workdir: str = "/work"
    """Absolute path of the folder in which commands start; it can be written to."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every command. The host's variables are never visible."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folders and files of the host that the box sees read-only: path in the box to host path."""
    socket: str | None = None
    """Path of a Unix socket of the host that the box may connect to, at `SOCKET_PATH`. It is the
    only way out of the box."""
    limits: SandboxLimits = field(default_factory=SandboxLimits)


SOCKET_PATH = "/run/rollart.sock"
"""Path at which a box sees `SandboxSpec.socket`."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The outcome of a command that was run in a box."""

    exit_code: int
    """Exit status; negative if a signal ended the command, 126 or 127 if it could not be run."""
    stdout: str
    stderr: str
    seconds: float
    """Time from the start of the command to its end [s]."""
    killed_by: KilledBy = KilledBy.NOTHING
    peak_memory_mb: float = 0.0
    """Largest memory of any one process of the command [MiB]."""

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0."""
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class SandboxSnapshot:
    """The files that a box had written below its work folder, and the spec they belong to.

    A snapshot is a tar archive, which any number of new boxes can begin with.
    """

    spec: SandboxSpec
    archive: bytes
    """Uncompressed tar archive with paths relative to the work folder."""
    digest: str = field(init=False, compare=False, repr=False)
    """SHA-256 of the archive, in hexadecimal digits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.archive).hexdigest())


class Sandbox(ABC):
    """One box. Its methods may be called concurrently; use it as an async context manager."""

    spec: SandboxSpec

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        """Run a command to its end.

        What the command leaves behind in the background lives on, within the limits of the box,
        until `kill_all` or `close`. After `timeout_s` the command is killed with all of its
        descendants.

        Args:
            command: a line for the box's `/bin/sh`, or a program with its arguments.
            timeout_s: limit of its time [s].
            stdin: what it reads.
            env: further variables, over those of the spec.
            cwd: the folder it starts in, instead of the spec's work folder.

        Raises:
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the contents of a file; relative paths start at the work folder.

        Raises:
            SandboxFileError: there is no such regular file, or it is larger than `max_bytes`.
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes) -> None:
        """Write a file, and the folders above it.

        Raises:
            SandboxFileError: the path cannot be written, or the disk of the box is full.
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def upload(self, source: Path, path: str) -> None:
        """Copy a file or a folder of the host into the box, as `path`.

        Raises:
            FileNotFoundError: the source does not exist.
            SandboxFileError: the path cannot be written, or the disk of the box is full.
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def download(self, path: str, target: Path) -> None:
        """Copy a file or a folder of the box to the host, as `target`.

        Links that lead out of the folder, devices and sockets are refused.

        Raises:
            SandboxFileError: there is no such path, it holds what may not be copied, or the target
                exists.
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def snapshot(self) -> SandboxSnapshot:
        """Return the files below the work folder, for new boxes that start with them.

        Raises:
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def processes(self) -> int:
        """Return how many processes live in the box beside its own.

        Raises:
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def kill_all(self) -> None:
        """Kill every process in the box; its files remain.

        Raises:
            SandboxError: the box has ended.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the box with all that it holds. May be called twice."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the box can be used."""

    @property
    def peak_memory_mb(self) -> float:
        """Largest memory of the box so far [MiB]; 0 where the variant does not measure it."""
        return 0.0

    @property
    def killed_by(self) -> KilledBy:
        """The limit that ended the box; NOTHING if it lives, or the variant does not know."""
        return KilledBy.NOTHING

    async def pack(self, path: str) -> bytes:
        """Return a file or a folder of the box as a tar archive whose one top entry is `ENTRY`.

        Nothing in the archive has been checked. A variant that copies through the host overrides
        this and `unpack` if it can do without.

        Raises:
            SandboxFileError: there is no such path, or it holds what may not be copied.
            SandboxError: the box has ended.
        """
        with tempfile.TemporaryDirectory(prefix="rollart-") as folder:
            copied = Path(folder, ENTRY)
            await self.download(path, copied)
            return await asyncio.to_thread(packed_file, copied, ENTRY)

    async def unpack(self, archive: bytes, path: str) -> None:
        """Copy the one top entry of a tar archive, which has the last name of `path`, to `path`.

        Raises:
            SandboxFileError: the path cannot be written, or the disk of the box is full.
            SandboxError: the box has ended.
        """
        with tempfile.TemporaryDirectory(prefix="rollart-") as folder:
            copied, limit = Path(folder, Path(path).name), 2 * self.spec.limits.disk_mb << 20
            problem = await asyncio.to_thread(
                unpack_entry, io.BytesIO(archive), copied, limit, copied.name
            )
            if problem:
                raise SandboxFileError(f"{path}: {problem}")
            await self.upload(copied, path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
