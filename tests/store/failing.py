"""Faults of a run's tables."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store.table_log import TableLog


@contextmanager
def failing_append(table: str) -> Iterator[None]:
    """Let the next append to a table fail before it reaches the log, as a broken network would."""
    real = TableLog.append

    def append(self: TableLog, *arguments: object) -> None:
        if self.table == table:
            raise StoreError(f"{table}: injected")
        real(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableLog, "append", append)
        yield
