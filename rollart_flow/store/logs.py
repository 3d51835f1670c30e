"""Logs of the processes of a run: what they print, warnings, and tracebacks.

Each process appends to a file of its own in the run's folder `logs`; those of a run in S3 are in a
private folder of each machine. The invariant: a process keeps at most `PARTS` files of
`PART_BYTES`, the first one and the last ones, and a run at most `MOST_FILES` files, so that no
process that prints for ever fills a disk.
"""

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from rollart_flow.store import files
from rollart_flow.store.waits import make_private

PART_BYTES = 1 << 20
"""Size of a file after which the next one begins [bytes]."""
PARTS = 3
"""Files of one process: its first one, the one before the current one, and the current one."""
MOST_FILES = 192
"""Files of a run; older ones are removed when a process begins another one."""
_NAME = re.compile(r"(?P<process>.+)-(?P<pid>\d+)(?:\.(?P<part>[01]))?\.log")
_ORDER = {"0": 0, "1": 1, None: 2}


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of the log of one process, the oldest first."""

    process: str
    """Name of the process in the run, such as "rollout"."""
    pid: int
    paths: tuple[Path, ...]

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths if path.exists())

    @property
    def changed_at(self) -> float:
        """Time of the process's last write [seconds of the epoch]."""
        return max((path.stat().st_mtime for path in self.paths if path.exists()), default=0.0)

    def text(self) -> str:
        """Everything that is kept, with a line where a part is left out."""
        return "".join(path.read_text(errors="replace") for path in self.paths if path.exists())


def logs_folder(run: str) -> Path:
    """The folder of the logs of a run on this machine."""
    if not files.is_remote(run):
        return Path(run) / "logs"
    name = sha256(run.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rollart-logs-{os.getuid()}" / name


def begin_logs(run: str) -> None:
    """Make the folder of the logs of a run; the logs of earlier drivers stay."""
    folder = logs_folder(run)
    with suppress(OSError):  # a run goes on without logs
        make_private(folder) if files.is_remote(run) else folder.mkdir(exist_ok=True)


def read_logs(run: str) -> list[LogFiles]:
    """The logs of the processes of a run on this machine, the one that wrote first at first."""
    found: dict[tuple[str, int], list[tuple[int, Path]]] = {}
    for path in logs_folder(run).glob("*.log"):
        if (named := _NAME.fullmatch(path.name)) is not None:
            key = named["process"], int(named["pid"])
            found.setdefault(key, []).append((_ORDER[named["part"]], path))
    logs = [LogFiles(*key, tuple(path for _, path in sorted(each))) for key, each in found.items()]
    return sorted(logs, key=lambda log: (_began(log.paths), log.process, log.pid))


def _began(paths: Sequence[Path]) -> str:
    """The first line of a log, which begins with the time of its first record."""
    with suppress(OSError), open(paths[0], errors="replace") as stream:
        return stream.readline()
    return ""


class BoundedLog:
    """The log of one process; one thread at a time appends to it."""

    def __init__(self, run: str, process: str, pid: int) -> None:
        self._folder = logs_folder(run)
        self._name = f"{process.replace('/', '_')}-{pid}"
        self._stream: BinaryIO | None = None
        self._size = 0

    @property
    def process(self) -> str:
        """Name of the process, with its pid."""
        return self._name

    def append(self, text: str) -> None:
        """Append whole lines. A log that cannot be written loses them; the run goes on."""
        with suppress(OSError):
            data = text.encode(errors="replace")[-PART_BYTES:]
            stream = self._stream or self._open()
            if self._size + len(data) > PART_BYTES:
                stream = self._turn_over()
            stream.write(data)
            self._size += len(data)

    def close(self) -> None:
        """Close the file; `append` opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self) -> BinaryIO:
        path = self._folder / f"{self._name}.log"
        if not path.exists():
            _make_room(self._folder)
        self._stream = open(path, "ab", buffering=0)  # noqa: SIM115  closed by `close`
        self._size = path.stat().st_size
        return self._stream

    def _turn_over(self) -> BinaryIO:
        """Keep the full file as the first one, or as the last before the current one."""
        self.close()
        first = self._folder / f"{self._name}.0.log"
        last = self._folder / f"{self._name}.1.log"
        (self._folder / f"{self._name}.log").replace(last if first.exists() else first)
        return self._open()


def append_to_log(run: str, process: str, pid: int, text: str) -> None:
    """Append whole lines to the log of a process that does not write itself."""
    with closing(BoundedLog(run, process, pid)) as log:
        log.append(text)


def _make_room(folder: Path) -> None:
    """Remove the files that no process has written to for longest, if there are too many."""
    found = list(folder.glob("*.log"))
    if len(found) >= MOST_FILES:
        found.sort(key=lambda path: path.stat().st_mtime)
        for path in found[: len(found) - MOST_FILES + 1]:
            path.unlink(missing_ok=True)
