"""The record of where the workers of a run are: rows of `bindings`, and events of fallbacks."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rollart_flow.operators.buffer import BufferActor
from rollart_flow.resources import Remote, TypedCluster, Worker
from rollart_flow.rows import events_table, to_ipc
from rollart_flow.schema import to_table
from rollart_flow.types import Event, EventKind


def record_bindings(
    buffer: Remote[BufferActor],
    clusters: Sequence[TypedCluster[Worker] | None],
    others: Sequence[dict[str, Any]] = (),
) -> list[Event]:
    """Commit the placement of all workers once they are ready; return the events of fallbacks.

    Args:
        buffer: buffer of the run.
        clusters: workers, whose placement is that of their processes.
        others: rows of `bindings` of workers that are in no cluster.
    """
    bindings = [row for cluster in clusters if cluster is not None for row in cluster.bindings()]
    bindings += others
    fallbacks = _fallbacks(bindings)
    rows = {
        "bindings": to_ipc(to_table("bindings", bindings)),
        "events": to_ipc(events_table((datetime.now(UTC), event) for event in fallbacks)),
    }
    buffer.call.commit(rows)
    return fallbacks


def _fallbacks(bindings: list[dict[str, Any]]) -> list[Event]:
    """Return one event for each pair of a requested class and its fallback class."""
    rows = [row for row in bindings if row["fallback"]]
    by_class: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_class.setdefault((row["requested"], row["granted"]), []).append(row)
    return [
        Event(
            EventKind.FALLBACK,
            subject=requested,
            detail={
                "requested": requested,
                "granted": granted,
                "domains": sorted({row["domain"] for row in of_class}),
                "workers": sorted({row["worker"] for row in of_class}),
            },
        )
        for (requested, granted), of_class in by_class.items()
    ]
