"""The Delta log of one table, as the only writer of its run writes it.

A log entry is a small JSON file, written in place of deltalake's transactions, which take several
milliseconds each because they read the log before they add to it. This writer knows the newest
version: whatever it does not know takes the next number first, and then an exclusive write fails.

Invariant: of two writers that hold the same table, one cannot commit and gets an error. The marks
are explained in `marks`.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable

from rollart_flow.errors import FencedError, StoreAwayError, StoreError
from rollart_flow.store import files
from rollart_flow.store.layout import log_entry, table_uri
from rollart_flow.store.marks import CALLER, CLOCK, COMPLETE, DRIVER, EPOCH, WRITER, read_marks
from rollart_flow.store.table import (
    LINES,
    DataFile,
    add_missing_columns,
    creation,
    data_files,
    delta_errors,
    is_missing,
    missing_columns,
    open_table,
    recorded,
)

_ATTEMPTS = 1000
_MARKS = (EPOCH, DRIVER, WRITER, COMPLETE, CLOCK, CALLER)


class TableLog:
    """One table as its only writer sees it. Not thread-safe; `RunWriter` holds the lock."""

    def __init__(self, run: str, table: str) -> None:
        self.run = run
        self.table = table
        self.uri = table_uri(run, table)
        self.epoch = 0
        self.term = 0
        self.version = 0
        """The newest version that this writer knows."""
        self.files: list[DataFile] = []
        """The live files of that version, in order of seq."""
        self._marks: dict[str, int] = {}

    def mark(self, app: str) -> int:
        """Version of an application transaction in the known version; 0 if there is none."""
        return self._marks[app]

    def load(self) -> DeltaTable:
        """Read the newest version, and return its handle."""
        handle = open_table(self.run, self.table)
        self.version = handle.version()
        self.files = data_files(handle)
        self._marks = read_marks(self.uri, handle, _MARKS)
        return handle

    def take_over(self, term: int | None = None) -> None:
        """Start a new epoch, so that the next commit of any other writer is refused.

        Args:
            term: term of the process that drives the run; None for that of the last one.

        Raises:
            FencedError: a process of a later term drives the run.
            StoreError: the log cannot be read or written.
        """
        handle: DeltaTable | None = None
        try:
            handle = self.load() if files.names(files.join(self.uri, "_delta_log")) else None
        except StoreError as error:
            if not is_missing(error):
                raise
        if handle is None and not self._create(term or 0):
            handle = self.load()  # another writer has made it meanwhile
        if self.version == 0:  # the write of the entry syncs its own folder alone, and none above
            files.sync(self.run, files.join("tables", self.table, log_entry(0)))
        if handle is None:
            return
        loaded = self.version
        for _ in range(_ATTEMPTS):
            self._follow()
            self.epoch = self.mark(EPOCH) + 1
            self.term = self.mark(DRIVER) if term is None else term
            if self.term < self.mark(DRIVER):
                raise self._fenced()
            if self._put(_entry((), {EPOCH: self.epoch, DRIVER: self.term})):
                self._marks |= {EPOCH: self.epoch, DRIVER: self.term}
                break
        else:
            raise StoreError(f"{self.table}: another writer commits too fast to be taken over")
        if self.version > loaded + 1:  # the other writer has committed meanwhile
            handle = self.load()
        if missing_columns(self.table, handle):
            with delta_errors(f"{self.table}: cannot add columns to {self.uri}"):
                add_missing_columns(self.load(), self.table, self.epoch)
            self.load()
            files.sync(self.uri, log_entry(self.version))

    def _create(self, term: int) -> bool:
        """Make the table, with an epoch of this writer; False if it is there already."""
        began = {EPOCH: 1, DRIVER: term}
        self.version = -1
        if not self._put(_entry(creation(self.table), began, made=True)):
            return False
        self.epoch, self.term = 1, term
        self.files, self._marks = [], dict.fromkeys(_MARKS, 0) | began
        return True

    def _follow(self) -> None:
        """Read the entries that others have added, of which only the marks are kept."""
        while (entry := self._read(self.version + 1)) is not None:
            self.version += 1
            for action in map(json.loads, entry.splitlines()):
                if (mark := action.get("txn")) and mark["appId"] in self._marks:
                    self._marks[mark["appId"]] = mark["version"]

    def verify(self) -> None:
        """Raise FencedError if another writer has taken over in the known version."""
        if self.mark(EPOCH) != self.epoch:
            raise self._fenced()

    def refresh(self) -> None:
        """Read the newest version if there is one that this writer has not written."""
        if self._read(self.version + 1) is not None or self._read(self.version) is None:
            self.load()

    def recorded(
        self, transaction: int, counts: Mapping[str, int]
    ) -> dict[str, tuple[int, int]] | None:
        """Return the (first, last) seqs by table that were committed under a caller's number.

        Args:
            transaction: the number, of a group of commits that this table closes.
            counts: number of rows of the group by table.

        Returns:
            None if nothing was committed under this number or a later one.

        Raises:
            StoreError: a later number was committed, or other rows under this one.
        """
        if transaction > self.mark(CALLER):
            return None
        found = recorded(open_table(self.run, self.table), transaction)
        if found is None:
            raise StoreError(
                f"{self.table}: transaction {transaction} comes after {self.mark(CALLER)};"
                " the numbers of commits must grow"
            )
        if counts != {table: last - first + 1 for table, (first, last) in found.items()}:
            raise StoreError(
                f"{self.table}: transaction {transaction} was committed with other rows"
            )
        return found

    def append(
        self, new: Sequence[DataFile], marks: Mapping[str, int], note: Mapping[str, Any]
    ) -> None:
        """Commit written files, in order of seq, under new marks, WRITER among them.

        Raises:
            FencedError: another writer has taken over.
            StoreError: the file was not committed, or the log cannot be read to find out.
        """
        self._commit([_added(file, data_change=True) for file in new], marks, note)
        self.files.extend(new)

    def replace(self, old: Sequence[DataFile], new: DataFile) -> None:
        """Commit a file that holds the rows of adjacent live files in their place.

        Raises:
            FencedError: another writer has taken over.
            StoreError: the log cannot be written.
        """
        removed = [_removed(file, data_change=False) for file in old]
        self._commit([_added(new, data_change=False), *removed])
        gone = set(old)
        self.files = sorted(
            [new, *(file for file in self.files if file not in gone)],
            key=lambda file: file.first_seq,
        )

    def roll_back(self, complete: int) -> None:
        """Remove the files of a group that was never closed: those with rows past `complete`."""
        half = [file for file in self.files if file.last_seq > complete]
        if half:
            self._commit([_removed(file, data_change=True) for file in half])
            self.files = [file for file in self.files if file.last_seq <= complete]

    def _commit(
        self,
        actions: Iterable[Mapping[str, Any]],
        marks: Mapping[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        marks = {EPOCH: self.epoch, DRIVER: self.term, **(marks or {})}
        entry = _entry(actions, marks, note)
        for _ in range(_ATTEMPTS):
            if self._put(entry):
                self._marks |= marks
                return
            self.load()
            self.verify()
        raise StoreError(f"{self.table}: another program commits too fast to {self.uri}")

    def _put(self, entry: bytes) -> bool:
        """Write the entry of the next version; False if that version is there already.

        A stopped writer may write below a checkpoint, where entries have been removed, from the
        oldest on: then the entry before its own is gone too.
        """
        following = self.version + 1
        try:
            written = files.write(self._entry_uri(following), entry, exclusive=True)
        except StoreAwayError as error:
            raise StoreAwayError(f"{self.table}: {error}") from error
        except StoreError as error:  # which may hide that the entry was written
            if self._read(following) != entry:
                raise StoreError(f"{self.table}: {error}") from error
            written = True
        if not written and self._read(following) != entry:
            return False
        if following > 0 and self._read(self.version) is None:
            raise self._fenced()
        self.version = following
        return True

    def _read(self, version: int) -> bytes | None:
        return files.read(self._entry_uri(version))

    def _entry_uri(self, version: int) -> str:
        return files.join(self.uri, log_entry(version))

    def _fenced(self) -> FencedError:
        return FencedError(
            f"{self.table}: another writer has taken over the run at {self.run}; this one must stop"
        )


def _entry(
    actions: Iterable[Mapping[str, Any]],
    marks: Mapping[str, int],
    note: Mapping[str, Any] | None = None,
    *,
    made: bool = False,
) -> bytes:
    """The lines of one log entry, as the Delta protocol has them; no two entries are equal."""
    operation, mode = ("CREATE TABLE", "ErrorIfExists") if made else ("WRITE", "Append")
    information: dict[str, Any] = {
        "timestamp": _now_ms(),
        "operation": operation,
        "operationParameters": {"mode": mode, "partitionBy": "[]"},
        "engineInfo": "rollart_flow",
        "txnId": uuid.uuid4().hex,
    }
    if note:
        information["rollart"] = json.dumps(note)
    transactions = [{"txn": {"appId": app, "version": n}} for app, n in marks.items()]
    lines = [{"commitInfo": information}, *actions, *transactions]
    information[LINES] = len(lines)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _added(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    action = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": _now_ms(),
        "dataChange": data_change,
        "stats": file.statistics,
    }
    return {"add": action}


def _removed(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    action = {
        "path": file.path,
        "deletionTimestamp": _now_ms(),
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size_bytes,
    }
    return {"remove": action}


def _now_ms() -> int:
    return int(time.time() * 1000)
