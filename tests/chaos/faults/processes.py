"""SIGKILL and SIGSTOP of processes of a run, by the titles that Ray gives them."""

import os
import signal
from pathlib import Path

import psutil

from tests.chaos.held import Record
from tests.chaos.matrix import wait_until
from tests.runner.shell import Shell


def titled(title: str, processes: list[int]) -> list[int]:
    """The processes whose title begins so, such as `ray::BufferActor`."""
    return [pid for pid in processes if _title(pid).startswith(title)]


def of_driver(driver: Shell, title: str) -> int:
    """The first process with a title among those that a driver and its local Ray started."""
    return min(titled(title, driver.processes()))


def of_clusters(title: str) -> list[int]:
    """Processes with a title among the descendants of this process."""
    below = [process.pid for process in psutil.Process().children(recursive=True)]
    return titled(title, below)


def gcs_of_driver(driver: Shell) -> int:
    """The server of the local Ray of a driver that knows all its actors and nodes."""
    (found,) = (pid for pid in driver.processes() if psutil.Process(pid).name() == "gcs_server")
    return found


def kill(record: Record, pid: int, what: str) -> None:
    """End a process with SIGKILL."""
    record.fault(f"SIGKILL {what}")
    os.kill(pid, signal.SIGKILL)


def stop(record: Record, pid: int, what: str) -> None:
    """Stop a process with SIGSTOP, and return once the kernel has."""
    record.fault(f"SIGSTOP {what}")
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "SIGSTOP")


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""  # it has gone meanwhile
