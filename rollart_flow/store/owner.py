"""The process that owns a run, and whether it is alive."""

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that drives a run.

    `started` distinguishes it from a later process with the same pid.
    """

    host: str
    pid: int
    started: str
    namespace: str = ""
    """PID namespace of the process; empty in runs of an earlier version."""

    @classmethod
    def this_process(cls) -> Self:
        """Return the owner that describes the calling process."""
        started = _process_start(str(os.getpid()) if _own_proc() else "self")
        return cls(socket.gethostname(), os.getpid(), started, _namespace())

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the owner that describes a process that this one has started."""
        return cls(socket.gethostname(), pid, _process_start(str(pid)), _namespace())

    @property
    def same_kernel(self) -> bool:
        """Whether the process runs under this kernel since its boot, so that it sees its locks."""
        boot, tick, _ = self.started.partition("/")
        return boot == _boot_id() if tick else self.host == socket.gethostname()

    @property
    def here(self) -> bool:
        """Whether this process would see that one, so that `gone` can be determined."""
        same_names = self.host == socket.gethostname() and self.namespace in ("", _namespace())
        return same_names and self.same_kernel

    @property
    def gone(self) -> bool:
        """Whether the process has certainly ended; False (unknown) if it is not `here`."""
        if not self.here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # the process exists and belongs to another user
        return _own_proc() and _process_start(str(self.pid)) != self.started


@cache
def _boot_id() -> str:
    """The id of this boot of the kernel; empty if the system does not report it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    """The PID namespace of this process; empty if the system does not report it."""
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _own_proc() -> bool:
    """Whether /proc lists processes by their ids in the PID namespace of this process."""
    try:
        return os.readlink(_PROC / "self") == str(os.getpid())
    except OSError:
        return True


def _process_start(name: str) -> str:
    """Boot id and clock tick at which a process began; empty if the system does not report them."""
    try:
        stat = (_PROC / name / "stat").read_text()
    except OSError:
        return ""
    after_name = stat.rsplit(")", 1)[1].split()
    dead = after_name[0] in "ZX"
    return "" if dead else f"{_boot_id()}/{after_name[19]}"
