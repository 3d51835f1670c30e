"""The files of a box whose first process is the agent.

Small files are opened by the agent and read or written here, through their descriptor. Folders
cross as tar archives, which a child of the agent packs and unpacks.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
from abc import abstractmethod
from pathlib import Path

from rollart_flow.errors import SandboxError, SandboxFileError
from rollart_flow.sandbox.agent.connection import AgentAnswer, Connection
from rollart_flow.sandbox.agent.streams import (
    KeptPipe,
    OutputPipe,
    memory_file,
    read_all,
    write_all,
)
from rollart_flow.sandbox.archives import ENTRY, pack_file, unpack_archive
from rollart_flow.sandbox.base import MAX_READ_BYTES, Sandbox, SandboxSnapshot, SandboxSpec

_LARGE_BYTES = 1 << 20
"""Size from which a file is copied outside the event loop [bytes]."""
_MESSAGE_BYTES = 2000


class AgentFiles(Sandbox):
    """The part of a box that reads and writes its files.

    Args:
        spec: contents and limits.
        connection: to its agent, which has answered.
    """

    def __init__(self, spec: SandboxSpec, connection: Connection) -> None:
        self.spec = spec
        self._connection = connection

    @abstractmethod
    def _end_reason(self) -> str:
        """Return why the box has ended."""

    async def _result(self, answer: asyncio.Future[AgentAnswer]) -> AgentAnswer:
        """Wait for an answer; a box that ends meanwhile says why."""
        try:
            return await answer
        except SandboxError:
            raise SandboxError(f"the sandbox has ended: {self._end_reason()}") from None

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        descriptor = await self._open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            if size > max_bytes:
                raise SandboxFileError(f"{path}: {size} bytes are more than the {max_bytes} asked")
            if size <= _LARGE_BYTES:
                return read_all(descriptor, max_bytes)
            return await asyncio.to_thread(read_all, descriptor, max_bytes)
        finally:
            os.close(descriptor)

    async def write(self, path: str, data: bytes) -> None:
        descriptor = await self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            if len(data) <= _LARGE_BYTES:
                write_all(descriptor, data)
            else:
                await asyncio.to_thread(write_all, descriptor, data)
        except OSError as error:
            raise SandboxFileError(f"{path}: {self._why(error.errno)}") from error
        finally:
            os.close(descriptor)

    async def upload(self, source: Path, path: str) -> None:
        os.lstat(source)  # raises FileNotFoundError before anything is sent
        folder, name = posixpath.split(self._inside(path).rstrip("/"))
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        packing = asyncio.create_task(asyncio.to_thread(pack_file, source, name, write_end))
        try:
            await self._archive("unpack", folder, "", read_end)
        finally:
            os.close(read_end)
            await packing

    async def download(self, path: str, target: Path) -> None:
        inside = self._inside(path)
        limit = 2 * self.spec.limits.disk_mb << 20
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        unpacking = asyncio.create_task(asyncio.to_thread(unpack_archive, read_end, target, limit))
        try:
            await self._archive("pack", inside, ENTRY, write_end, closes=True)
        finally:
            problem = await unpacking
        if problem:
            raise SandboxFileError(f"{path}: {problem}")

    async def snapshot(self) -> SandboxSnapshot:
        return SandboxSnapshot(self.spec, await self._packed(self.spec.workdir, "."))

    async def pack(self, path: str) -> bytes:
        return await self._packed(path, ENTRY)

    async def unpack(self, archive: bytes, path: str) -> None:
        await self._unpacked(archive, posixpath.dirname(self._inside(path).rstrip("/")))

    async def _packed(self, path: str, inner: str) -> bytes:
        """Return a path of the box as an archive with the top entry `inner`."""
        collected = bytearray()
        limit = 2 * self.spec.limits.disk_mb << 20

        def take(data: bytes) -> None:
            if len(collected) <= limit:
                collected.extend(data)

        pipe = OutputPipe(take)
        try:
            await self._archive("pack", self._inside(path), inner, pipe.write_end)
            pipe.hand_over()
            pipe.drain()
        finally:
            pipe.close()
        if len(collected) > limit:
            raise SandboxFileError(f"{path}: more than {limit >> 20} MiB, which is too large")
        return bytes(collected)

    async def restore(self, snapshot: SandboxSnapshot) -> None:
        """Unpack a snapshot into the work folder.

        Raises:
            SandboxFileError: it does not fit.
            SandboxError: the box has ended.
        """
        await self._unpacked(snapshot.archive, self.spec.workdir)

    async def _unpacked(self, archive: bytes, folder: str) -> None:
        stored = memory_file(archive)
        try:
            await self._archive("unpack", folder, "", stored)
        finally:
            os.close(stored)

    def _inside(self, path: str) -> str:
        return posixpath.join(self.spec.workdir, path)

    async def _open(self, path: str, flags: int) -> int:
        """Return the descriptor of a regular file of the box, which the caller closes."""
        try:
            _, future = self._connection.send("open", (self._inside(path), flags))
        except ValueError as error:
            raise SandboxFileError(f"{path[:80]}: {error}") from None
        answer = await self._result(future)
        if answer.kind != "opened" or answer.descriptor is None:
            raise SandboxFileError(f"{path}: {self._why(answer.numbers[0])}")
        if not stat.S_ISREG(os.fstat(answer.descriptor).st_mode):
            os.close(answer.descriptor)
            raise SandboxFileError(f"{path}: no regular file")
        os.set_blocking(answer.descriptor, True)
        return answer.descriptor

    async def _archive(
        self, operation: str, path: str, inner: str, end: int, *, closes: bool = False
    ) -> None:
        """Let the agent pack or unpack an archive through `end`, one end of a pipe."""
        stderr = KeptPipe(_MESSAGE_BYTES)
        packs = operation == "pack"
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        streams = (nothing, end, stderr.write_end) if packs else (end, nothing, stderr.write_end)
        try:
            _, future = self._connection.send(operation, (path, inner), streams)
            stderr.hand_over()
            if closes:
                os.close(end)
                closes = False
            answer = await self._result(future)
            stderr.drain()
        finally:
            if closes:
                os.close(end)
            os.close(nothing)
            stderr.close()
        if answer.kind == "refused":
            raise SandboxFileError(f"{path}: {self._why(answer.numbers[0])}")
        if answer.numbers[0] != 0:
            reason = stderr.kept.text().strip() or "the archive could not be copied"
            raise SandboxFileError(f"{path}: {reason}")

    def _why(self, code: int | None) -> str:
        if code == errno.ENOSPC:
            return f"the disk of the sandbox is full ({self.spec.limits.disk_mb} MiB)"
        return os.strerror(code or errno.EIO)
