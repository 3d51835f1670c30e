"""Copies of a run with some rows changed, written through the store: what tampering would leave."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart_flow.schema import TABLES, row_schema, to_table
from rollart_flow.store import Parent, Run, RunWriter, open_run

Rows = list[dict[str, Any]]
Change = Callable[[Rows], Rows]
"""From all rows of a table, in commit order, to those that the copy has."""

FOLDERS = ("policy", "weights", "checkpoints")


def copied(
    run: Run,
    target: Path,
    changes: Mapping[str, Change] | None = None,
    *,
    without: tuple[str, ...] = (),
    parent: Parent | None = None,
) -> Run:
    """Copy a run.

    Args:
        run: it is left as it is.
        target: folder of the copy; must not exist.
        changes: by table.
        without: of `FOLDERS`, those that the copy lacks.
        parent: where the copy says that it was forked from.
    """
    source = Path(run.uri)
    writer = RunWriter.create(str(target), replace(run.info, name=target.name, parent=parent))
    shutil.copy(source / "pipeline.py", target)
    for folder in set(FOLDERS) - set(without):
        shutil.copytree(source / folder, target / folder)
    tables = run.snapshot().frames()
    for table in ("trajectories", *(table for table in TABLES if table != "trajectories")):
        names = row_schema(table).names
        rows = tables[table].sort("seq").select(names).collect().to_dicts()
        writer.commit(table, to_table(table, (changes or {}).get(table, list)(rows)))
    writer.close()
    return open_run(str(target))


def changing(key: str, value: object, **values: Any) -> Change:
    """Set columns of the rows whose column `key` has a value."""
    return lambda rows: [{**row, **values} if row[key] == value else row for row in rows]


def nothing(rows: Rows) -> Rows:
    """Leave all rows away."""
    return rows[:0]
