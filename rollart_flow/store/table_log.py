"""The log of one Delta table, as held by the only writer of its run.

Invariant: of two writers that hold the same table, one cannot commit and gets an error. The marks
are explained in `table`.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from deltalake.transaction import AddAction, RemoveAction

from rollart_flow.errors import FencedError, StoreError
from rollart_flow.store import files
from rollart_flow.store.table import (
    EPOCH,
    WRITER,
    add_missing_columns,
    commit_actions,
    create_table,
    data_files,
    delta_errors,
    is_missing,
    mark,
    open_table,
    removal,
)

_REOPEN_AFTER = 50
"""Commits after which a handle is reopened, because it slows down as its history grows."""

_TAKE_OVER_ATTEMPTS = 1000


class TableLog:
    """One table as its only writer sees it. Not thread-safe; `RunWriter` holds the lock."""

    def __init__(self, run: str, table: str) -> None:
        self.run = run
        self.table = table
        try:
            self.handle = open_table(run, table)
        except StoreError as error:
            if not is_missing(error):
                raise
            create_table(run, table)
            self.handle = open_table(run, table)
        self._options = files.storage_options(run)
        self.epoch = 0
        self._commits = 0
        self._marks: dict[str, int] = {}
        self._behind = False
        """Whether this writer has committed since the last refresh.

        `_marks` are correct unless another writer has committed too.
        """

    def mark(self, app: str) -> int:
        """Version of an application transaction in the held state; 0 if none.

        A look-up in the log takes milliseconds, so the marks that this writer set are cached.
        """
        if app not in self._marks:
            self._marks[app] = mark(self.handle, app)
        return self._marks[app]

    def take_over(self) -> None:
        """Start a new epoch, so that the next commit of any other writer is refused.

        Raises:
            StoreError: the log cannot be written.
        """
        for _ in range(_TAKE_OVER_ATTEMPTS):
            before = self.handle.version()
            self.epoch = self.mark(EPOCH) + 1
            try:
                self._commit([], {}, "cannot take over")
            except StoreError:
                self.refresh(reopen=True)
                if before == self.handle.version():
                    raise
                continue
            self.refresh()
            with delta_errors(f"{self.table}: cannot add columns to {self.handle.table_uri}"):
                if add_missing_columns(self.handle, self.table, self.epoch):
                    self.refresh()
            return
        raise StoreError(f"{self.table}: another writer commits too fast to be taken over")

    def verify(self) -> None:
        """Raise FencedError if another writer has taken over in the held state."""
        if self.mark(EPOCH) != self.epoch:
            raise FencedError(
                f"{self.table}: another writer has taken over the run at {self.run};"
                " this one must stop"
            )

    def refresh(self, *, reopen: bool = False) -> None:
        """Bring the held state up to date; reopening is slower but drops the accumulated history.

        A handle keeps the credentials that it was opened with, so it is also reopened when the
        credentials have been renewed.
        """
        self._marks.clear()
        options = files.storage_options(self.run)
        with delta_errors(f"{self.table}: cannot read the Delta log"):
            if reopen or self._commits >= _REOPEN_AFTER or options != self._options:
                self.handle = open_table(self.run, self.table)
                self._options, self._commits = options, 0
            else:
                self.handle.update_incremental()
        self._behind = False

    def catch_up(self) -> None:
        """Refresh the held state if this writer has committed since the last refresh.

        A refresh makes requests, so it is deferred until the next commit is prepared. Cached marks
        of this writer are kept unless another writer has committed too. Renewed credentials are
        always picked up.
        """
        if not self._behind and files.storage_options(self.run) == self._options:
            return
        remembered, before = self._marks, self.handle.version()
        self._marks = {}
        self.refresh()
        if self.handle.version() == before + 1:
            self._marks = remembered

    def append(self, file: AddAction, marks: Mapping[str, int], note: Mapping[str, Any]) -> None:
        """Commit one written file under new marks, WRITER among them.

        An error of the object store may hide a commit that took place, so the log is read again.

        Raises:
            FencedError: another writer has taken over.
            StoreError: the file was not committed, or the log cannot be read to find out.
        """
        self.catch_up()
        self.verify()
        try:
            self._commit([file], marks, "cannot commit to", note)
        except StoreError:
            self.refresh(reopen=True)
            self.verify()
            if self.mark(WRITER) != marks[WRITER]:
                raise
        else:
            self._marks |= marks
            self._behind = True
        self._commits += 1

    def roll_back(self, complete: int) -> None:
        """Remove the files of a group that was never closed: those with rows past `complete`."""
        half = [file for file in data_files(self.handle) if file["max.seq"] > complete]
        if half:
            actions = [removal(file, data_change=True) for file in half]
            self._commit(actions, {}, "cannot roll back")
            self.refresh()

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        marks: Mapping[str, int],
        doing: str,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        with delta_errors(f"{self.table}: {doing} {self.handle.table_uri}"):
            marks = {EPOCH: self.epoch, **marks}
            commit_actions(self.handle, self.table, actions, marks, note)


@contextmanager
def catching_up(logs: Sequence[TableLog]) -> Iterator[None]:
    """Refresh logs in background threads while the files to be committed to them are written.

    Raises:
        StoreError: a log cannot be read.
    """
    with ThreadPoolExecutor(len(logs), thread_name_prefix="catch-up") as threads:
        looking = [threads.submit(log.catch_up) for log in logs]
        yield
    for look in looking:
        look.result()
