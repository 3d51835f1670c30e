"""Delta tables of a run: create, commit, scan, time travel; local or in S3.

Names are imported on first use: the modules of paths and files are light, and the modules of
tables load polars and deltalake.
"""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports

if TYPE_CHECKING:
    from rollart_flow.store.info import Parent, RunInfo, RunStatus, read_info
    from rollart_flow.store.layout import list_runs, new_run_uri, resolve, store_uri
    from rollart_flow.store.owner import Owner
    from rollart_flow.store.run import Run, open_run
    from rollart_flow.store.snapshot import Snapshot
    from rollart_flow.store.writer import RunWriter

__all__ = [
    "Owner", "Parent", "Run", "RunInfo", "RunStatus", "RunWriter", "Snapshot", "list_runs",
    "new_run_uri", "open_run", "read_info", "resolve", "store_uri",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "owner": "Owner",
        "info": "Parent RunInfo RunStatus read_info",
        "run": "Run open_run",
        "writer": "RunWriter",
        "snapshot": "Snapshot",
        "layout": "list_runs new_run_uri resolve store_uri",
    },
)
