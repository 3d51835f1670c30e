"""Cursors of trackers: how far each has come, in the folder of its run.

The file is written after its record. A tracker that is killed in between may have one record more,
which it recognizes.
"""

import hashlib
import json

from rollart_flow.errors import StoreError
from rollart_flow.metrics.reading import Cursor
from rollart_flow.store import Run, files
from rollart_flow.trackers.base import TrackedRun


def tracked_run(run: Run) -> TrackedRun:
    """Describe a stored run to trackers."""
    info = run.info
    digest = hashlib.sha256(f"{info.name} {info.created_at.isoformat()}".encode()).hexdigest()
    folder = None if files.is_remote(run.uri) else run.uri
    return TrackedRun(run.uri, info.name, f"{info.name}-{digest[:8]}", info.settings, folder)


def _cursor_uri(run: str, tracker: str) -> str:
    return files.join(run, "trackers", f"{tracker}.json")


def read_cursor(run: str, tracker: str) -> Cursor:
    """Return how far a tracker has come; the start if it never began.

    Raises:
        StoreError: the file cannot be read, or is damaged.
    """
    data = files.read(_cursor_uri(run, tracker))
    if data is None:
        return Cursor()
    try:
        return Cursor(**json.loads(data))
    except (TypeError, ValueError) as error:
        place = _cursor_uri(run, tracker)
        raise StoreError(f"{place} is damaged; remove it, and the tracker begins anew") from error


def write_cursor(run: str, tracker: str, cursor: Cursor) -> None:
    """Record how far a tracker has come."""
    files.write(_cursor_uri(run, tracker), json.dumps(cursor.as_json()).encode())
