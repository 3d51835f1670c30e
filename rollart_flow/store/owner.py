"""The process that owns a run, and whether it is alive."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes a run.

    `started` distinguishes it from a later process with the same pid.
    """

    host: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Self:
        """Return the owner that describes the calling process."""
        return cls(socket.gethostname(), os.getpid(), _process_start(os.getpid()))

    @property
    def here(self) -> bool:
        """Whether the process runs on this host, so that `gone` can be determined."""
        return self.host == socket.gethostname()

    @property
    def gone(self) -> bool:
        """Whether the process has certainly ended; False (unknown) for another host."""
        if not self.here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # the process exists and belongs to another user
        return _process_start(self.pid) != self.started


def _process_start(pid: int) -> str:
    """Boot id and clock tick at which a process began; empty if the system does not report them."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    after_name = stat.rsplit(")", 1)[1].split()
    dead = after_name[0] in "ZX"
    return "" if dead else f"{boot}/{after_name[19]}"
