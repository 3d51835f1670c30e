"""A box whose first process is the agent, as `base.Sandbox` describes it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from rollart_flow.sandbox.agent.cgroup import ControlGroup
from rollart_flow.sandbox.agent.connection import AgentAnswer, Connection
from rollart_flow.sandbox.agent.files import AgentFiles
from rollart_flow.sandbox.agent.streams import KeptPipe, memory_file
from rollart_flow.sandbox.base import CommandResult, KilledBy, SandboxSpec

_CANNOT_RUN = 126


class BoxHost(Protocol):
    """The holder of a box's processes: bubblewrap, or a container."""

    group: ControlGroup | None

    async def end(self) -> None:
        """Kill what lives of the box, and wait until all of it is gone. May be called twice."""


class AgentSandbox(AgentFiles):
    """A box that lives as long as its agent, the first process in it.

    Args:
        spec: contents and limits.
        host: the holder of its processes.
        connection: to its agent, which has answered.
        env: variables of every command.
    """

    def __init__(
        self, spec: SandboxSpec, host: BoxHost, connection: Connection, env: Mapping[str, str]
    ) -> None:
        super().__init__(spec, connection)
        self._host = host
        self._env = env
        self._peak_mb = 0.0
        self._closed = False
        self._oldest_end = asyncio.get_running_loop().time() + spec.limits.lifetime_s

    @property
    def alive(self) -> bool:
        return not self._connection.ended

    @property
    def peak_memory_mb(self) -> float:
        """Largest memory of the box so far [MiB]; 0 where the host has no writable cgroup."""
        group = self._host.group
        if group is not None:
            self._peak_mb = max(self._peak_mb, group.peak_memory_mb())  # until the group is gone
        return self._peak_mb

    @property
    def killed_by(self) -> KilledBy:
        if self.alive or self._closed:
            return KilledBy.NOTHING
        if self._memory_kills():
            return KilledBy.MEMORY
        late = self._connection.ended_at >= self._oldest_end
        return KilledBy.TIME if late else KilledBy.NOTHING

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("exec: the command is empty")
        arguments = (argv, {**self._env, **(env or {})}, self._inside(cwd or ""))
        loop = asyncio.get_running_loop()
        kills_before = self._memory_kills()
        limit = self.spec.limits.output_kb << 10
        stdout, stderr = KeptPipe(limit), KeptPipe(limit)
        given = memory_file(stdin)
        late = False
        timer: asyncio.TimerHandle | None = None
        answer: asyncio.Future[AgentAnswer] | None = None

        def end_it() -> None:
            nonlocal late
            late = True
            self._kill(identity)

        try:
            began = loop.time()
            streams = (given, stdout.write_end, stderr.write_end)
            identity, answer = self._connection.send("run", arguments, streams)
            stdout.hand_over()
            stderr.hand_over()
            timer = loop.call_later(timeout_s, end_it)
            done = await self._result(answer)
            seconds = loop.time() - began
            stdout.drain()
            stderr.drain()
        except ValueError as error:
            return _not_run(f"{error}; write it to a file and run that", KilledBy.NOTHING)
        finally:
            if timer is not None:
                timer.cancel()
            if answer is not None and (answer.cancelled() or not answer.done()):
                self._kill(identity)
            stdout.close()
            stderr.close()
            os.close(given)
        if done.kind == "refused":
            full = done.numbers[0] == errno.EAGAIN
            reason = "too many processes" if full else os.strerror(done.numbers[0])
            return _not_run(reason, KilledBy.PROCESSES if full else KilledBy.NOTHING)
        code, peak_kb = done.numbers
        killed_by = KilledBy.TIME if late else KilledBy.NOTHING
        if not late and code != 0 and self._memory_kills() > kills_before:
            killed_by = KilledBy.MEMORY
        return CommandResult(
            code, stdout.kept.text(), stderr.kept.text(), seconds, killed_by, peak_kb / 1024
        )

    async def processes(self) -> int:
        return (await self._result(self._connection.send("count", ())[1])).numbers[0]

    async def kill_all(self) -> None:
        await self._result(self._connection.send("kill_all", ())[1])

    async def close(self) -> None:
        self._closed = self._closed or self.alive
        self._connection.close()
        await self._host.end()

    def _end_reason(self) -> str:
        if self._memory_kills():
            return f"its processes used more than {self.spec.limits.memory_mb} MiB of memory"
        return f"it was closed, killed, or older than {self.spec.limits.lifetime_s:g} s"

    def _memory_kills(self) -> int:
        group = self._host.group
        return group.memory_kills() if group is not None else 0

    def _kill(self, identity: int) -> None:
        """Kill the command of a request."""
        if not self._connection.ended:
            self._connection.send("kill", (identity,))[1].cancel()


def _not_run(reason: str, killed_by: KilledBy) -> CommandResult:
    return CommandResult(_CANNOT_RUN, "", f"cannot run the command: {reason}\n", 0.0, killed_by)
