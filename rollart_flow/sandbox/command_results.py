"""Results of commands and causes of ends, the same for every way to make a box."""

from __future__ import annotations

from collections.abc import Sequence

from rollart_flow.sandbox.base import CommandResult, KilledBy, SandboxLimits

_CANNOT_RUN = 126
"""Exit code of a command that could not be run, as of a shell."""


def command_line(command: str | Sequence[str]) -> list[str]:
    """Return the arguments of a command, which a shell reads if it is a text.

    Raises:
        ValueError: there are none.
    """
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if not argv:
        raise ValueError("exec: the command is empty")
    return argv


def not_run(reason: str, killed_by: KilledBy = KilledBy.NOTHING) -> CommandResult:
    """Return the result of a command that could not be run."""
    return CommandResult(_CANNOT_RUN, "", f"cannot run the command: {reason}\n", 0.0, killed_by)


def killed_command(*, late: bool, code: int, memory_kills: int) -> KilledBy:
    """Return what killed a command.

    Args:
        late: whether it ran past its limit of time.
        code: its exit code.
        memory_kills: processes of the box that were killed for memory meanwhile.
    """
    if late:
        return KilledBy.TIME
    return KilledBy.MEMORY if code != 0 and memory_kills > 0 else KilledBy.NOTHING


def end_reason(limits: SandboxLimits, *, by_memory: bool) -> str:
    """Return why a box has ended, as far as its holder knows."""
    if by_memory:
        return f"its processes used more than {limits.memory_mb} MiB of memory"
    return f"it was closed, killed, or older than {limits.lifetime_s:g} s"
