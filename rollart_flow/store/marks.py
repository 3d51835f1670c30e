"""Marks: application transactions in the log of each table, which carry the writer's guarantees
(`table_log`, `snapshot`).

- EPOCH: number of writers that have taken the table over. A writer of an earlier epoch is fenced:
  every commit sets EPOCH, and Delta refuses a commit if EPOCH was set since the handle was read,
  so that of two writers one always fails.
- DRIVER: term of the process that drives the run (`lease`), set by every commit. A writer of a
  lower term is fenced, and cannot take the table over.
- WRITER: the highest seq in the table.
- COMPLETE: the last seq of a group of commits, in the table that closes the group. Rows beyond the
  highest COMPLETE of all tables belong to an incomplete group and are never read.
- CLOCK: `committed_at` of the last commit in microseconds, so that it never decreases.
- CALLER: the caller's own number of the commit, by which a retry is recognized.
"""

import json
from collections.abc import Collection

from deltalake import DeltaTable

from rollart_flow.store import files
from rollart_flow.store.layout import log_entry

EPOCH = "rollart.epoch"
DRIVER = "rollart.driver"
WRITER = "rollart.writer"
COMPLETE = "rollart.complete"
CLOCK = "rollart.clock"
CALLER = "rollart.caller"

_TRANSACTION = b'{"txn"'
"""Beginning of a line of a log entry with an application transaction."""
_ENTRIES = 20
"""Newest log entries that are read for the marks of a table."""


def mark(handle: DeltaTable, app: str) -> int:
    """Version of an application transaction in the state of `handle`; 0 if there is none."""
    return handle.transaction_version(app) or 0


def read_marks(uri: str, handle: DeltaTable, apps: Collection[str]) -> dict[str, int]:
    """Versions of application transactions in the state of `handle`; 0 for each without one.

    In a local folder the newest log entries are read, which have most of them: deltalake reads the
    whole log for each.
    """
    found: dict[str, int] = {}
    version = handle.version()
    oldest = version if files.is_remote(uri) else max(-1, version - _ENTRIES)
    for at in range(version, oldest, -1):
        if found.keys() >= set(apps):
            break
        if (entry := files.read(files.join(uri, log_entry(at)))) is None:
            break  # a checkpoint has replaced it
        for line in entry.splitlines():
            if line.startswith(_TRANSACTION):
                transaction = json.loads(line)["txn"]
                found.setdefault(transaction["appId"], transaction["version"])
        if at == 0:
            found = dict.fromkeys(apps, 0) | found
    return {app: found[app] if app in found else mark(handle, app) for app in apps}
