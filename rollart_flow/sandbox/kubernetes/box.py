"""A pod as `base.Sandbox` describes a box."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import posixpath
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollart_flow.errors import SandboxError, SandboxFileError
from rollart_flow.sandbox.agent.seccomp import MACHINES, filter_program
from rollart_flow.sandbox.archives import ENTRY, packed_file, unpack_entry
from rollart_flow.sandbox.base import (
    MAX_READ_BYTES,
    CommandResult,
    Sandbox,
    SandboxSnapshot,
    SandboxSpec,
)
from rollart_flow.sandbox.command_results import (
    command_line,
    end_reason,
    killed_command,
    not_run,
)
from rollart_flow.sandbox.kubernetes.cluster import ClusterConnection
from rollart_flow.sandbox.kubernetes.requests import COMMAND, parsed_answer, request_bytes
from rollart_flow.timeouts import timeout

_MARGIN_S = 60.0
"""Time beyond that of its command after which an exec counts as lost [s]."""
_LONGEST_REQUEST_BYTES = 1 << 17
_HEAD_BYTES = 1 << 16


class PodSandbox(Sandbox):
    """A box that lives as long as the connection to the first process of its pod.

    Args:
        spec: contents and limits.
        name: name of the pod, whose container runs.
        cluster: the connection to its cluster, which the box closes.
        lifeline: open websocket to the first process.
    """

    def __init__(
        self, spec: SandboxSpec, name: str, cluster: ClusterConnection, lifeline: Any
    ) -> None:
        self.spec = spec
        self._name = name
        self._cluster = cluster
        self._lifeline = lifeline
        self._ended = asyncio.Event()
        self._closed = False
        self._listening = asyncio.create_task(self._listen())

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        argv = command_line(command)
        limits = self.spec.limits
        arguments = {
            "argv": argv,
            "env": {**self.spec.env, **(env or {})},
            "cwd": self._inside(cwd or ""),
            "timeout_s": timeout_s,
            "processes": limits.processes,
            "kept": limits.output_kb << 10,
            "filters": {name: filter_program(name).hex() for name in MACHINES},
        }
        if (size := len(json.dumps(arguments))) > _LONGEST_REQUEST_BYTES:
            return not_run(
                f"a request of {size} bytes is too long; write it to a file and run that"
            )
        try:
            answer, data = await self._ask("run", arguments, stdin, timeout_s=timeout_s)
        except _NoAnswerError:
            await self.kill_all()  # the command has killed what watches it, and runs alone
            return CommandResult(-signal.SIGKILL, "", "", 0.0)
        killed_by = killed_command(
            late=answer["late"], code=answer["code"], memory_kills=answer["memory_kills"]
        )
        stdout, stderr = data[: answer["split"]], data[answer["split"] :]
        return CommandResult(
            answer["code"],
            stdout.decode(errors="replace"),
            stderr.decode(errors="replace"),
            answer["seconds"],
            killed_by,
            answer["peak_kb"] / 1024,
        )

    async def read(self, path: str, *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        arguments = {"path": self._inside(path), "most": max_bytes}
        answer, data = await self._file("read", path, arguments, most=max_bytes)
        if answer["size"] > max_bytes:
            raise SandboxFileError(
                f"{path}: {answer['size']} bytes are more than the {max_bytes} asked"
            )
        return data

    async def write(self, path: str, data: bytes) -> None:
        await self._file("write", path, {"path": self._inside(path)}, data)

    async def upload(self, source: Path, path: str) -> None:
        os.lstat(source)  # raises FileNotFoundError before anything is sent
        folder, name = posixpath.split(self._inside(path).rstrip("/"))
        archive = await asyncio.to_thread(packed_file, source, name)
        await self._file("unpack", path, {"path": folder}, archive)

    async def download(self, path: str, target: Path) -> None:
        limit = 2 * self.spec.limits.disk_mb << 20
        arguments = {"path": self._inside(path), "inner": ENTRY}
        _, archive = await self._file("pack", path, arguments, most=limit)
        problem = await asyncio.to_thread(unpack_entry, io.BytesIO(archive), target, limit)
        if problem:
            raise SandboxFileError(f"{path}: {problem}")

    async def snapshot(self) -> SandboxSnapshot:
        path = self.spec.workdir
        limit = 2 * self.spec.limits.disk_mb << 20
        _, archive = await self._file("pack", path, {"path": path, "inner": "."}, most=limit)
        return SandboxSnapshot(self.spec, archive)

    async def restore(self, snapshot: SandboxSnapshot) -> None:
        """Unpack a snapshot into the work folder.

        Raises:
            SandboxFileError: it does not fit.
            SandboxError: the box has ended.
        """
        path = self.spec.workdir
        await self._file("unpack", path, {"path": path}, snapshot.archive)

    async def processes(self) -> int:
        return int((await self._answer("count"))["processes"])

    async def kill_all(self) -> None:
        await self._answer("kill_all")

    async def reached(self, attempts: int) -> str:
        """Return the address outside that the box reaches, empty if it reaches none.

        Raises:
            SandboxError: the box has ended.
        """
        return str((await self._answer("reach", {"attempts": attempts}))["reached"])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ended.set()
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        try:
            await self._lifeline.close()
            await self._cluster.delete(self._name)
        finally:
            await self._cluster.close()

    async def _listen(self) -> None:
        """Note the end of the connection to the first process, with which the box ends."""
        async for _ in self._lifeline:
            continue
        self._ended.set()

    def _inside(self, path: str) -> str:
        return posixpath.join(self.spec.workdir, path)

    async def _file(
        self,
        operation: str,
        path: str,
        arguments: dict[str, Any],
        given: bytes = b"",
        most: int = 0,
    ) -> tuple[dict[str, Any], bytes]:
        """Do something with files of the box.

        Raises:
            SandboxFileError: it cannot be done.
        """
        try:
            answer, data = await self._ask(operation, arguments, given, most=most)
        except _NoAnswerError as error:
            raise SandboxFileError(f"{path}: it cannot be copied ({error})") from None
        code = answer.get("errno")
        if code == errno.ENOSPC:
            full = f"the disk of the sandbox is full ({self.spec.limits.disk_mb} MiB)"
            raise SandboxFileError(f"{path}: {full}")
        if code is not None:
            raise SandboxFileError(f"{path}: {os.strerror(int(code))}")
        if answer.get("regular") is False:
            raise SandboxFileError(f"{path}: no regular file")
        if "message" in answer:
            raise SandboxFileError(f"{path}: {str(answer['message'])[:200]}")
        return answer, data

    async def _answer(self, operation: str, arguments: dict[str, Any] | None = None) -> Any:
        try:
            return (await self._ask(operation, arguments or {}))[0]
        except _NoAnswerError as error:
            self._ended.set()
            reason = await self._end_reason()
            raise SandboxError(f"the sandbox has ended: {reason} ({error})") from None

    async def _ask(
        self,
        operation: str,
        arguments: dict[str, Any],
        given: bytes = b"",
        *,
        most: int = 0,
        timeout_s: float = 0.0,
    ) -> tuple[dict[str, Any], bytes]:
        """Have the pod do something; return its answer and the bytes of it.

        Raises:
            _NoAnswerError: what should have answered was killed.
            SandboxError: the box has ended.
        """
        if self._ended.is_set():
            raise SandboxError(f"the sandbox has ended: {await self._end_reason()}")
        most = max(most, self.spec.limits.output_kb << 13) + _HEAD_BYTES
        request = request_bytes(operation, arguments, given)
        try:
            async with timeout(timeout_s + _MARGIN_S):
                output, status = await self._cluster.exec(self._name, COMMAND, request, most)
        except (SandboxError, TimeoutError) as error:
            self._ended.set()
            reason = await self._end_reason()
            raise SandboxError(f"the sandbox has ended: {reason} ({error})") from error
        if status.get("status") != "Success":
            raise _NoAnswerError(str(status.get("message", "")))
        return parsed_answer(output)

    async def _end_reason(self) -> str:
        reason = "" if self._closed else await self._cluster.end_reason(self._name)
        return end_reason(self.spec.limits, by_memory=reason == "OOMKilled")


class _NoAnswerError(Exception):
    """A process of the holder in the pod ended without an answer."""
