"""Answers about several runs: their list, and a comparison."""

from collections.abc import Sequence
from typing import Any

from rollart_flow.errors import QueryError, RollartError
from rollart_flow.store import Snapshot, read_info
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.encoding import encode_rows, encode_value
from rollart_flow.views import comparison
from rollart_flow.views.runs import FIGURES
from rollart_flow.views.view import PAGE_ROWS, ViewReader

DAMAGED = "damaged"
"""Status of a run that cannot be read."""


def run_list(catalog: RunCatalog, offset: int = 0) -> dict[str, Any]:
    """Return a page of the runs of a catalog, the newest first; a damaged one with its error.

    Args:
        catalog: the runs.
        offset: runs before the page.
    """
    rows = [_described(name, uri) for name, uri in catalog.addresses().items()]
    rows.sort(key=lambda row: row["created_at"] or "", reverse=True)
    page = [_with_figures(catalog, row) for row in rows[offset : offset + PAGE_ROWS]]
    more = len(rows) > offset + PAGE_ROWS
    return {"title": catalog.title, "runs": page, "more": more, "query": FIGURES.sql}


def compared(catalog: RunCatalog, names: Sequence[str]) -> dict[str, Any]:
    """Return settings in which runs differ, and the rows of the views of a comparison of each.

    Raises:
        QueryError: they are not two to `comparison.MOST_RUNS` different runs.
        RunNotFoundError: one is not there.
    """
    if not 2 <= len(set(names)) == len(names) <= comparison.MOST_RUNS:
        raise QueryError(f"two to {comparison.MOST_RUNS} different runs can be compared")
    runs = {name: catalog.open(name) for name in names}
    infos = {name: live.run.info for name, live in runs.items()}

    def read(snapshot: Snapshot) -> dict[str, Any]:
        reader = ViewReader(snapshot)
        return {view.name: encode_rows(reader.read(view)) for view in comparison.VIEWS}

    return {
        "runs": [{"name": name, "status": info.status} for name, info in infos.items()],
        "settings": [
            {"name": name, "values": values}
            for name, values in comparison.differing_settings(list(infos.values()))
        ],
        "views": {name: live.read(read) for name, live in runs.items()},
    }


def _described(name: str, uri: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "uri": uri, "created_at": None}
    try:
        info = read_info(uri)
    except (RollartError, OSError) as error:
        return row | {"status": DAMAGED, "error": str(error)}
    return row | {
        "status": info.status,
        "error": info.error,
        "pipeline": info.pipeline,
        "parent": None if info.parent is None else f"{info.parent.uri} step {info.parent.step}",
        "created_at": info.created_at.isoformat(),
    }


def _with_figures(catalog: RunCatalog, row: dict[str, Any]) -> dict[str, Any]:
    if row["status"] == DAMAGED:
        return row
    try:
        live = catalog.open(row["name"])
        figures = live.read(lambda snapshot: ViewReader(snapshot).read(FIGURES).frame)
    except (RollartError, OSError) as error:
        return row | {"status": DAMAGED, "error": str(error)}
    values = figures.row(0, named=True)
    return row | {column: encode_value(value) for column, value in values.items()}
