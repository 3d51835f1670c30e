"""Checks whose results are kept: what is known is not checked again, and an interrupt loses little.

The invariant: a result that was reported is in the table of the store when the iterator ends,
however it ends.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from rollart_flow.checking.task_checks import CheckedTask, CheckSettings, TaskCheck, check_tasks
from rollart_flow.schema import to_table
from rollart_flow.store.admissions import AdmissionTable, key_of

_ROWS = 32
_SECONDS = 5.0
"""Number of results, and time, after which they are written together."""


class RecordedChecks:
    """The checks of some tasks in one store.

    Args:
        tasks: the tasks.
        table: table of the store.
        settings: how tasks are checked.
        again: check what was checked before too.
    """

    def __init__(
        self,
        tasks: Sequence[CheckedTask],
        table: AdmissionTable,
        settings: CheckSettings,
        *,
        again: bool = False,
    ) -> None:
        self._table = table
        self._settings = settings
        known: dict[Any, dict[str, Any]] = {}
        if not again:
            rows = table.newest({each.domain.name for each in tasks}).to_dicts()
            known = {key_of(row): row for row in rows}
        self.known = [known[each.key] for each in tasks if each.key in known]
        """Rows of the tasks that were checked before."""
        self.todo = [each for each in tasks if each.key not in known]
        """Tasks to check."""
        self._unwritten: list[TaskCheck] = []
        self._written_at = time.monotonic()

    async def rows(self) -> AsyncGenerator[dict[str, Any]]:
        """Check the tasks, and yield the row of each as soon as it is there.

        Raises:
            StoreError: the table cannot be written.
        """
        checks = check_tasks(self.todo, self._settings)
        try:
            async for check in checks:
                self._unwritten.append(check)
                late = time.monotonic() - self._written_at > _SECONDS
                if late or len(self._unwritten) >= _ROWS:
                    self._write()
                yield check.as_row()
        finally:
            self._write()
            await checks.aclose()

    def _write(self) -> None:
        checks, self._unwritten = self._unwritten, []
        self._written_at = time.monotonic()
        self._table.add(to_table("admissions", [check.as_row() for check in checks]))
