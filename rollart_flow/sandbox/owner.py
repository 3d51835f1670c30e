"""The owner of a box: the process that holds it, and the run and pool that it is for.

What a box leaves if its owner is killed carries a label of the owner, so that a later process can
tell it from what a living one holds. A process id alone would not do: it is used again.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

_STARTED_FIELD = 19
"""Index of the start time among the fields of /proc/PID/stat after the name."""
_for: dict[str, str] = {}


def owner_label() -> str:
    """Return the label of this process, "PID-START": its id, and its start in ticks since boot."""
    return f"{os.getpid()}-{_started(os.getpid())}"


def name_owner(run: str, pool: str) -> None:
    """Say which run and pool the boxes of this process are for."""
    _for.update(run=run, pool=pool)


def owner_labels() -> Mapping[str, str]:
    """Return the labels of this process's boxes: `owner`, and `run` and `pool` if it has them."""
    return {"owner": owner_label(), **_for}


def is_owned(label: str) -> bool:
    """Whether the process of a label lives; a text that is no label counts as owned."""
    if (found := re.fullmatch(r"(\d+)-(\d+)", label)) is None:
        return True
    return _started(int(found[1])) == int(found[2])


def process_namespace() -> str:
    """Return the number of the namespace in which the ids of labels are those of processes."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def sweep_folders(parent: Path, prefix: str) -> None:
    """Remove the folders "PREFIX" + label + "-..." whose owner has died."""
    for folder in parent.glob(f"{prefix}*-*-*"):
        if not is_owned(folder.name.removeprefix(prefix).rpartition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)


def _started(pid: int) -> int:
    """Return when a process started [ticks since boot]; -1 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return -1
    fields = text.rpartition(")")[2].split()
    return -1 if fields[0] in "ZX" else int(fields[_STARTED_FIELD])
