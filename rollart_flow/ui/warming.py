"""The first pages of a server, read before anybody asks for them.

The first query of a process loads most of polars and of the reader of tables, which takes longer
than the query.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rollart_flow.errors import RollartError
from rollart_flow.store import Snapshot
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.encoding import encode_rows
from rollart_flow.ui.several_runs import run_list
from rollart_flow.views.pages import PAGES
from rollart_flow.views.view import ViewReader

_OVERVIEW = "overview"
_END_S = 5.0
"""Longest time that the end of a server waits for a query that is under way [s]."""
_LOG = logging.getLogger(__name__)


def warm(catalog: RunCatalog) -> None:
    """Read the list of runs, and the overview of the newest one that can be read."""
    for run in run_list(catalog)["runs"]:
        try:
            catalog.open(run["name"]).read(_read_overview)
            return
        except (RollartError, ConnectionError):  # whoever opens its page is told
            continue


def _read_overview(snapshot: Snapshot) -> None:
    reader = ViewReader(snapshot)
    for view in PAGES[_OVERVIEW]:
        encode_rows(reader.read(view))


@contextmanager
def warming(catalog: RunCatalog) -> Iterator[None]:
    """Read the first pages in a thread for the duration of the block."""

    def read() -> None:
        try:
            warm(catalog)
        except Exception:  # noqa: BLE001  a bug delays a page, and ends nothing
            _LOG.exception("the first pages were not read ahead")

    thread = threading.Thread(target=read, name="warming", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(_END_S)
