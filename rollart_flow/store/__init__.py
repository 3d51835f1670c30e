"""Delta tables of a run: create, commit, scan, time travel; local or in S3."""

from rollart_flow.store.info import Parent, RunInfo, RunStatus, read_info
from rollart_flow.store.layout import list_runs, new_run_uri, resolve, store_uri
from rollart_flow.store.owner import Owner
from rollart_flow.store.run import Run, open_run
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.writer import RunWriter

__all__ = [
    "Owner",
    "Parent",
    "Run",
    "RunInfo",
    "RunStatus",
    "RunWriter",
    "Snapshot",
    "list_runs",
    "new_run_uri",
    "open_run",
    "read_info",
    "resolve",
    "store_uri",
]
