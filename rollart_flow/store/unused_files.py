"""Files of a table that no reader needs any more, each removed after a retention.

These are data files that were replaced, data files that an earlier writer left behind, and log
files before a checkpoint. The log says since when each is not used, so that a writer continues the
retention of the writers before it, however often a run is taken over.
"""

import json
import re
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta

from rollart_flow.store import files
from rollart_flow.store.layout import log_entry
from rollart_flow.store.table import DataFile
from rollart_flow.store.table_log import TableLog

_LOG_FILE = re.compile(r"_delta_log/(\d{20})\..*")
_CHECKPOINT = re.compile(r"_delta_log/(\d{20})\.checkpoint\.parquet")
_TIMED = re.compile(rb'\{"(remove|commitInfo)"')
"""Beginning of the lines of a log entry that have a time."""


class UnusedFiles:
    """The unused files of the table of a writer that has just taken over.

    One thread at a time may call it.
    """

    def __init__(self, log: TableLog) -> None:
        self._uri = log.uri
        live = {file.path for file in log.files}
        names = files.names(log.uri)
        versions = [int(found[1]) for name in names if (found := _LOG_FILE.fullmatch(name))]
        self._first = min(versions, default=0)
        """The oldest version whose log entry may be there."""
        self._checkpoints = sorted(
            int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))
        )
        """Versions of the checkpoints that are there."""
        self._inherited = [name for name in names if name not in live and "/" not in name]
        """Data files that earlier writers replaced, or wrote and never committed."""
        self._taken_at: int | None = log.version
        """Version up to which earlier writers committed; None once these entries were read."""
        self._replaced: deque[tuple[float, str]] = deque()
        """Time since which a data file is not part of the table, and its path."""
        self._made: deque[tuple[float, int]] = deque()
        """Time and version of the checkpoints whose earlier log files are there too."""
        self._removable: list[str] = []
        """Files to remove now; those of a failed attempt stay here."""

    @property
    def newest_checkpoint(self) -> int:
        """Version of the newest checkpoint of the log; 0 if there is none."""
        return self._checkpoints[-1] if self._checkpoints else 0

    def replace(self, old: Iterable[DataFile]) -> None:
        """Note that data files have been replaced now."""
        now = time.monotonic()
        self._replaced.extend((now, file.path) for file in old)

    def checkpoint(self, version: int) -> None:
        """Note that a checkpoint of the log was made now."""
        self._checkpoints.append(version)
        self._made.append((time.monotonic(), version))

    def remove(self, retention: timedelta) -> int:
        """Remove the files that have not been used for `retention`; return how many.

        Raises:
            StoreError: storage failed; the next call tries again.
        """
        self._inherit()
        before = time.monotonic() - retention.total_seconds()
        while self._replaced and self._replaced[0][0] <= before:
            self._removable.append(self._replaced.popleft()[1])
        while self._made and self._made[0][0] <= before:
            _, version = self._made.popleft()
            # In ascending order, as `TableLog` relies on.
            self._removable += map(log_entry, range(self._first, version))
            self._removable += (checkpoint_file(n) for n in self._checkpoints if n < version)
            self._checkpoints = [each for each in self._checkpoints if each >= version]
            self._first = version
        names = self._removable
        if names:
            files.remove_all(self._uri, names)
        self._removable = []
        return len(names)

    def _inherit(self) -> None:
        """Determine, once, since when files of earlier writers are not used.

        A log entry that removes a data file is removed after that file. So a file that no entry
        removes was never committed, and nobody reads it.
        """
        if self._taken_at is None:
            return
        removed_ms: dict[str, int] = {}
        committed_ms: dict[int, int] = {}
        inherited = self._first if self._inherited or self._checkpoints else self._taken_at + 1
        for version in range(inherited, self._taken_at + 1):
            entry = files.read(files.join(self._uri, log_entry(version))) or b""
            for action in map(json.loads, filter(_TIMED.match, entry.splitlines())):
                if "remove" in action:
                    removed_ms[action["remove"]["path"]] = action["remove"]["deletionTimestamp"]
                else:
                    committed_ms[version] = action["commitInfo"]["timestamp"]
        now, now_ms = time.monotonic(), time.time() * 1000

        def since(moment_ms: int) -> float:
            return now - max(0.0, now_ms - moment_ms) / 1000

        aged = sorted((since(removed_ms.get(name, 0)), name) for name in self._inherited)
        self._replaced.extendleft(reversed(aged))
        made = [
            (since(committed_ms.get(n, 0)), n) for n in self._checkpoints if n <= self._taken_at
        ]
        self._made.extendleft(reversed(made))
        self._taken_at = None


def checkpoint_file(version: int) -> str:
    """Path of the checkpoint of a version within the folder of its table."""
    return f"_delta_log/{version:020d}.checkpoint.parquet"
