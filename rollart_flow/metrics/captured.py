"""Figures of captured agents' calls and of boxes, where a run has any."""

from collections.abc import Iterator

import polars as pl

from rollart_flow.metrics.figures import Figure, figure
from rollart_flow.metrics.grouped import spread
from rollart_flow.metrics.window import Window
from rollart_flow.types import TRAINABLE

_SUMS = {
    "gateway/mismatches": "mismatches",
    "gateway/joins": "joins",
    "gateway/replays": "replays",
    "gateway/hang_ups": "hung_up",
}


def gateway_figures(window: Window) -> Iterator[Figure]:
    """Give the figures of the calls that were committed since the step before."""
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
    yield from spread("gateway/queue_seconds", calls.select("queue_s"))
    yield from spread("gateway/call_seconds", calls.select("call_s"))
    sampled = int((calls["answer_end"] - calls["answer_start"]).sum())
    if sampled:
        yield figure("gateway/delivered_fraction", _delivered(window, calls) / sampled)


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
