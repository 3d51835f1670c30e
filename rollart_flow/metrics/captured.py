"""Figures of captured agents' calls and of boxes, where a run has any."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

import polars as pl

from rollart_flow.metrics.figures import Figure, figure
from rollart_flow.metrics.grouped import spread
from rollart_flow.metrics.window import Window
from rollart_flow.types import TRAINABLE, EventKind

_SUMS = {
    "gateway/mismatches": "mismatches",
    "gateway/joins": "joins",
    "gateway/replays": "replays",
    "gateway/hang_ups": "hung_up",
}


def gateway_figures(window: Window) -> Iterator[Figure]:
    """Give the figures of the calls that were committed since the step before."""
    yield from _unknown_keys(window)
    calls = window.rows("exchanges")
    calls = calls.join(window.attempts.select("episode_id").unique(), on="episode_id", how="semi")
    if not calls.height:
        return
    yield figure("gateway/calls", calls.height)
    yield figure("gateway/branches", calls["trajectory_id"].drop_nulls().n_unique())
    for name, column in _SUMS.items():
        yield figure(name, int(calls[column].cast(pl.Int64).sum()))
    refused = calls.drop_nulls("refusal").group_by("refusal").len().sort("refusal")
    yield figure("gateway/refusals", calls["refusal"].count())
    for refusal, count in refused.iter_rows():
        yield figure("gateway/refusals", count, refusal)
    first = (pl.col("first_token_at") - pl.col("arrived_at")).dt.total_microseconds() / 1e6
    yield from spread("gateway/first_token_seconds", calls.select(first))
    yield from spread("gateway/paused_seconds", _paused(window, calls))
    yield from spread("gateway/queue_seconds", calls.select("queue_s"))
    yield from spread("gateway/call_seconds", calls.select("call_s"))
    sampled = int((calls["answer_end"] - calls["answer_start"]).sum())
    if sampled:
        yield figure("gateway/delivered_fraction", _delivered(window, calls) / sampled)


def _unknown_keys(window: Window) -> Iterator[Figure]:
    events = window.rows("events").filter(pl.col("kind") == EventKind.UNKNOWN_KEY)
    if events.height:
        requests = (json.loads(detail)["requests"] for detail in events["detail"])
        yield figure("gateway/unknown_keys", sum(requests))


def _paused(window: Window, calls: pl.DataFrame) -> pl.DataFrame:
    """Return for each call that sampled the seconds in which the engines were suspended."""
    sampled = calls.drop_nulls("generating_at").select("generating_at", "ended_at")
    if not sampled.height:
        return pl.DataFrame({"paused": []}, schema={"paused": pl.Float64})
    first, last = sampled["generating_at"].min(), sampled["ended_at"].max()
    assert isinstance(first, datetime), "the column has moments"
    assert isinstance(last, datetime), "the column has moments"
    pauses = [*_pauses(window.pauses(first), last)]
    paused = [
        sum(
            max(0.0, (min(end, resumed) - max(begun, suspended)).total_seconds())
            for suspended, resumed in pauses
        )
        for begun, end in sampled.iter_rows()
    ]
    return pl.DataFrame({"paused": paused}, schema={"paused": pl.Float64})


def _pauses(events: pl.DataFrame, last: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Give when engines were suspended and went on again; the last time perhaps not yet."""
    suspended: datetime | None = None
    for kind, at, detail in events.iter_rows():
        if kind == EventKind.SUSPEND and suspended is None:
            suspended = at - timedelta(seconds=json.loads(detail or "{}").get("seconds", 0.0))
        elif kind == EventKind.RESUME and suspended is not None:
            yield suspended, at
            suspended = None
    if suspended is not None:
        yield suspended, last


def _delivered(window: Window, calls: pl.DataFrame) -> int:
    """Count the action tokens of the calls' attempts in rows that can be trained on."""
    rows = window.attempts.unique("trajectory_id", keep="first")
    rows = rows.join(calls.select("episode_id").unique(), on="episode_id", how="semi")
    answers = pl.col("outcome").is_in([str(outcome) for outcome in TRAINABLE])
    kept = rows.filter(answers, pl.col("reward").is_not_null())
    return int(kept["action_mask"].list.sum().sum())


def sandbox_figures(window: Window) -> Iterator[Figure]:
    """Give the figures of the boxes that ended since the step before."""
    boxes = window.rows("sandboxes")
    if not boxes.height:
        return
    yield figure("sandbox/boxes", boxes.height)
    yield figure("sandbox/leaked", int(boxes["leaked"].sum()))
    leased = boxes.drop_nulls("leased_at")
    if leased.height:
        yield figure("sandbox/prewarmed", float(leased["prewarmed"].sum()) / leased.height)
    killed = boxes.filter(pl.col("killed_by") != "")
    yield figure("sandbox/killed", killed.height)
    for cause, count in killed.group_by("killed_by").len().sort("killed_by").iter_rows():
        yield figure("sandbox/killed", count, cause)
    start = (pl.col("ready_at") - pl.col("created_at")).dt.total_microseconds() / 1e6
    yield from spread("sandbox/wait_seconds", boxes.select("wait_s"))
    yield from spread("sandbox/start_seconds", boxes.select(start))
    yield from spread("sandbox/peak_memory", boxes.select("peak_memory_mb"))
