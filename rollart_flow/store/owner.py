"""Which process a run belongs to, and whether it still lives."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that writes a run. `started` tells it from a later process of the same pid."""

    host: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Self:
        """The process that asks."""
        return cls(socket.gethostname(), os.getpid(), _process_start(os.getpid()))

    @property
    def here(self) -> bool:
        """Whether it is a process of this host, so that `gone` is known."""
        return self.host == socket.gethostname()

    @property
    def gone(self) -> bool:
        """Whether the process certainly runs no more; unknown (False) on another host."""
        if not self.here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it exists and belongs to somebody else
        return _process_start(self.pid) != self.started


def _process_start(pid: int) -> str:
    """Boot and clock tick at which a process began; empty where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    after_name = stat.rsplit(")", 1)[1].split()
    dead = after_name[0] in "ZX"
    return "" if dead else f"{boot}/{after_name[19]}"
