"""The start of a box, and its end: bubblewrap's process, the agent's, and the control group.

Invariant: after `end` no process of the box lives, its control group is gone and its image is no
longer in use, also if the box never became ready.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

from rollart_flow.errors import SandboxError
from rollart_flow.sandbox.agent.cgroup import ControlGroup, create_control_group
from rollart_flow.sandbox.agent.connection import Connection
from rollart_flow.sandbox.agent.seccomp import filter_program
from rollart_flow.sandbox.agent.streams import memory_file
from rollart_flow.sandbox.base import SandboxSpec
from rollart_flow.sandbox.bubblewrap.command_line import command_line
from rollart_flow.sandbox.bubblewrap.roots import BoxRoot
from rollart_flow.sandbox.owner import owner_labels
from rollart_flow.timeouts import timeout

READY_S = 30.0
"""Longest time for a box to become ready [s]."""
_ENTER = 'for file in $1; do echo $$ > "$file" || exit 1; done; shift; exec "$@"'
_OWNER = "ROLLART_OWNER"
"""Variable of bubblewrap's own process, which no command sees; it tells whose box it is."""
_REMOVALS, _REMOVAL_S = 50, 0.02


class Launched:
    """A box that was started: its processes, its control group and the connection to its agent."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        status: int,
        group: ControlGroup | None,
        root: BoxRoot,
    ) -> None:
        self.group = group
        self._root = root
        self._process = process
        self._status = status
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done once bubblewrap's process is reaped, which follows the end of the agent's."""
        self._pidfd = os.pidfd_open(process.pid)
        self._agent_pidfd = -1
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    def start(cls, spec: SandboxSpec, root: BoxRoot, runtime: Path) -> tuple[Launched, Connection]:
        """Start the processes of a box; return them with the connection to the agent.

        The box gives its image back when it ends, but not if it cannot be started.

        Raises:
            SandboxError: no process can be started.
        """
        try:
            with ExitStack() as undone, ExitStack() as handed:
                group = create_control_group(spec.limits)
                if group is not None:
                    undone.callback(group.remove)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undone.callback(ours.close)
                handed.callback(theirs.close)
                status, status_theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                undone.callback(os.close, status)
                handed.callback(os.close, status_theirs)
                passed = [theirs.fileno(), status_theirs]
                if program := filter_program(counted=group is not None):
                    passed.append(memory_file(program))
                    handed.callback(os.close, passed[-1])
                argv = command_line(
                    spec,
                    root,
                    runtime,
                    agent_fd=passed[0],
                    status_fd=passed[1],
                    seccomp_fd=passed[2] if program else None,
                    process_mb=0 if group is not None else spec.limits.memory_mb,
                )
                process = _process([*_entering(group), *argv], passed)
                undone.enter_context(process)  # waits for it
                connection = Connection(ours)
                undone.callback(connection.close)  # with it the agent ends, and its process
                launched = cls(process, status, group, root)
                undone.pop_all()
                return launched, connection
        except OSError as error:
            raise SandboxError(f"no sandbox can be started: {error}") from error

    async def wait_ready(self, connection: Connection) -> None:
        """Wait until the agent answers.

        Raises:
            SandboxError: the box ended first, with bubblewrap's message, or took too long.
        """
        try:
            async with timeout(READY_S):
                await connection.ready
        except TimeoutError:
            raise SandboxError(f"the sandbox was not ready after {READY_S:g} s") from None
        except SandboxError:
            raise SandboxError(f"the sandbox did not start: {self._message()}") from None
        self._find_agent()
        assert self._process.stderr is not None
        self._process.stderr.close()

    async def end(self) -> None:
        """Kill what lives of the box, and wait until all of it is gone.

        The kernel ends every process of the box with its agent. Bubblewrap's own process ends after
        that by itself, and would not wait for it if it were killed too.
        """
        self._find_agent()
        pidfd = self._agent_pidfd if self._agent_pidfd >= 0 else self._pidfd
        if pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await asyncio.shield(self.ended)
        self._root.release()
        assert self._process.stderr is not None
        self._process.stderr.close()
        if self.group is not None:
            await _remove(self.group)

    def _find_agent(self) -> None:
        """Open the agent's process, whose id bubblewrap has written to the status pipe."""
        if self._agent_pidfd >= 0 or self._status < 0:
            return
        try:
            text = os.read(self._status, 4096)
        except BlockingIOError:
            return
        if match := re.search(rb'"child-pid":\s*(\d+)', text):
            with suppress(ProcessLookupError):
                self._agent_pidfd = os.pidfd_open(int(match[1]))

    def _message(self) -> str:
        """Return what bubblewrap or the agent wrote before it ended, in one line."""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        text = self._process.stderr.read() or b""
        lines = text.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("bwrap: ") if lines else "it ended without a message"

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._process.wait()
        for descriptor in (self._pidfd, self._agent_pidfd, self._status):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd = self._agent_pidfd = self._status = -1
        if not self.ended.done():
            self.ended.set_result(None)


def _process(argv: list[str], passed: list[int]) -> subprocess.Popen[bytes]:
    """Start a process with these descriptors, and with the labels of its owner."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=passed,
        start_new_session=True,
        cwd="/",
        env={**os.environ, _OWNER: " ".join(owner_labels().values())},
    )


def _entering(group: ControlGroup | None) -> list[str]:
    """Return the command that enters a control group before it becomes its arguments."""
    if group is None:
        return []
    return ["/bin/sh", "-c", _ENTER, "sh", " ".join(group.procs_files)]


async def _remove(group: ControlGroup) -> None:
    """Remove a group whose last process was reaped a moment ago."""
    for _ in range(_REMOVALS):
        try:
            group.remove()
        except OSError:
            await asyncio.sleep(_REMOVAL_S)
        else:
            return
    group.remove()
