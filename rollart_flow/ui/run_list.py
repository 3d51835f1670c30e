"""The list of runs: what `run.json` says of each, and figures of its steps."""

from typing import Any

from rollart_flow.errors import RollartError
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.encoding import encode_value
from rollart_flow.views.runs import FIGURES
from rollart_flow.views.view import ViewReader


def run_list(catalog: RunCatalog) -> dict[str, Any]:
    """Return the runs of a catalog, the newest first; a damaged one with its error."""
    rows = [_row(catalog, name, uri) for name, uri in catalog.addresses().items()]
    rows.sort(key=lambda row: row["created_at"] or "", reverse=True)
    return {"title": catalog.title, "runs": rows, "query": FIGURES.sql}


def _row(catalog: RunCatalog, name: str, uri: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "uri": uri, "created_at": None}
    try:
        live = catalog.open(name)
        info = live.run.info
        figures = live.read(lambda snapshot: ViewReader(snapshot).read(FIGURES).frame)
    except (RollartError, OSError) as error:
        return row | {"status": "damaged", "error": str(error)}
    values = {column: encode_value(value) for column, value in figures.row(0, named=True).items()}
    return row | {
        "status": info.status,
        "error": info.error,
        "pipeline": info.pipeline,
        "parent": None if info.parent is None else f"{info.parent.uri} step {info.parent.step}",
        "created_at": info.created_at.isoformat(),
        **values,
    }
