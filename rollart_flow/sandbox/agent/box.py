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
from rollart_flow.sandbox.agent.streams import CommandStreams
from rollart_flow.sandbox.base import CommandResult, KilledBy, SandboxSpec
from rollart_flow.sandbox.command_results import (
    command_line,
    end_reason,
    killed_command,
    not_run,
)


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
        arguments = (command_line(command), {**self._env, **(env or {})}, self._inside(cwd or ""))
        kills_before = self._memory_kills()
        with CommandStreams(stdin, self.spec.limits.output_kb << 10) as streams:
            try:
                done, late, seconds = await self._run(arguments, streams, timeout_s)
            except ValueError as error:
                return not_run(f"{error}; write it to a file and run that")
        if done.kind == "refused":
            full = done.numbers[0] == errno.EAGAIN
            reason = "too many processes" if full else os.strerror(done.numbers[0])
            return not_run(reason, KilledBy.PROCESSES if full else KilledBy.NOTHING)
        code, peak_kb = done.numbers
        kills = self._memory_kills() - kills_before if code != 0 and not late else 0
        killed_by = killed_command(late=late, code=code, memory_kills=kills)
        stdout, stderr = streams.texts()
        return CommandResult(code, stdout, stderr, seconds, killed_by, peak_kb / 1024)

    async def _run(
        self, arguments: tuple[object, ...], streams: CommandStreams, timeout_s: float
    ) -> tuple[AgentAnswer, bool, float]:
        """Run a command; return the answer, whether it was killed for its time, and its seconds.

        Raises:
            ValueError: the request is too long.
            SandboxError: the box has ended.
        """
        loop = asyncio.get_running_loop()
        began, late = loop.time(), False
        identity, answer = self._connection.send("run", arguments, streams.ends())

        def end_it() -> None:
            nonlocal late
            late = True
            self._kill(identity)

        timer = loop.call_later(timeout_s, end_it)
        try:
            streams.hand_over()
            done = await self._result(answer)
            seconds = loop.time() - began
            streams.drain()
        finally:
            timer.cancel()
            if answer.cancelled() or not answer.done():
                self._kill(identity)
        return done, late, seconds

    async def processes(self) -> int:
        return (await self._result(self._connection.send("count", ())[1])).numbers[0]

    async def kill_all(self) -> None:
        await self._result(self._connection.send("kill_all", ())[1])

    async def close(self) -> None:
        self._closed = self._closed or self.alive
        self._connection.close()
        await self._host.end()

    def _end_reason(self) -> str:
        return end_reason(self.spec.limits, by_memory=self._memory_kills() > 0)

    def _memory_kills(self) -> int:
        group = self._host.group
        return group.memory_kills() if group is not None else 0

    def _kill(self, identity: int) -> None:
        """Kill the command of a request."""
        if not self._connection.ended:
            self._connection.send("kill", (identity,))[1].cancel()
