"""Waits of each process of a run, in one small file for each process, outside the tables.

A process replaces its file every `PERIOD_S`, from a thread of its own, so that the file is current
whatever the process hangs in, and whatever process hangs that it waits for. The files of a local
run are in its folder, which its driver makes and removes; those of a run in S3 are in the temporary
folder of each machine, so that only the processes of a machine are seen there.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from rollart_flow.store import files
from rollart_flow.store.owner import Owner

PERIOD_S = 2.0
"""Time between two reports of a process."""
_SILENT_S = 5 * PERIOD_S
"""Age of a report after which its process is silent."""


class ProcessState(StrEnum):
    """State of a process, as far as can be seen from here."""

    RUNNING = "running"
    STOPPED = "stopped"
    """Stopped by a signal; `kill -CONT` lets the process go on."""
    SILENT = "silent"
    """Without a report for a while: the process, its machine or the file system hangs."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class NamedWait:
    """Something that a process waits for."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ProcessWaits:
    """The last report of one process of a run."""

    process: str
    """Name of the process in the run, such as "buffer"."""
    state: ProcessState
    host: str
    pid: int
    age_s: float
    """Time since the report."""
    waits: tuple[NamedWait, ...]
    """The longest first, as they were at the report."""


def waits_folder(run: str) -> Path:
    """The folder of the reports of a run on this machine."""
    if not files.is_remote(run):
        return Path(run) / "waits"
    name = sha256(run.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rollart-waits-{os.getuid()}" / name


def write_waits(
    run: str, process: str, waits: Sequence[NamedWait], owner: Owner | None = None
) -> None:
    """Replace the report of a process, by default of this one.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = waits_folder(run)
    if files.is_remote(run):
        make_private(folder)
    owner = owner or Owner.this_process()
    said = {
        "process": process,
        "owner": asdict(owner),
        "at": time.time(),
        "waits": [asdict(wait) for wait in waits],
    }
    path = folder / f"{process}-{owner.pid}.json"
    written = folder / f".{uuid4().hex}"
    try:
        written.write_text(json.dumps(said))
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def read_waits(run: str) -> list[ProcessWaits]:
    """The newest reports of the processes of a run, by name."""
    found = []
    for path in sorted(waits_folder(run).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.append(_report(json.loads(path.read_text())))
    return found


def begin_waits(run: str) -> None:
    """Make the folder of the reports of a run, without those of an earlier driver."""
    clear_waits(run)
    folder = waits_folder(run)
    with suppress(OSError):  # a run goes on without reports
        make_private(folder) if files.is_remote(run) else folder.mkdir(exist_ok=True)


def make_private(folder: Path) -> None:
    """Make a folder within one of the temporary folder that only this user can read.

    Raises:
        PermissionError: another user has made it.
    """
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} belongs to another user")
    folder.mkdir(mode=0o700, exist_ok=True)


def clear_waits(run: str) -> None:
    """Remove the reports of a run that has ended."""
    shutil.rmtree(waits_folder(run), ignore_errors=True)


def _report(said: Mapping[str, Any]) -> ProcessWaits:
    owner = Owner(**said["owner"])
    age_s = max(0.0, time.time() - said["at"])
    waits = tuple(NamedWait(**wait) for wait in said["waits"])
    state = _state(owner, age_s)
    return ProcessWaits(said["process"], state, owner.host, owner.pid, age_s, waits)


def _state(owner: Owner, age_s: float) -> ProcessState:
    if owner.gone:
        return ProcessState.GONE
    if owner.here and is_stopped(owner.pid):
        return ProcessState.STOPPED
    return ProcessState.SILENT if age_s > _SILENT_S else ProcessState.RUNNING


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine was stopped by a signal."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] in "Tt"
