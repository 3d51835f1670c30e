"""The story of a trajectory in one sentence, made from the tables."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from rollart_flow.store.snapshot import Snapshot
from rollart_flow.types import TRAINABLE, EventKind, Split

_HEAD = (
    "trajectory_id", "episode_id", "group_id", "attempt", "split", "outcome", "reason", "error",
    "policy_version_start", "policy_version_end", "reward", "created_at", "finished_at",
    "scored_at", "committed_at",
)  # fmt: skip
_LEFT = (EventKind.DROP, EventKind.EVICT)


def story(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return when a trajectory was queued, sampled, scored and trained, or why it was not.

    Columns: sentence, fate (trained, in the buffer, or why it was not trained), admitted_at (when
    its group was admitted), created_at, finished_at, scored_at, committed_at, left_at (when it left
    the buffer untrained), batched_at and trained_at of the first step that trained on it; moments
    that never came are null. Without such a trajectory there is no row.

    Args:
        snapshot: the tables.
        trajectory: its id.
    """
    mine = pl.col("trajectory_id") == trajectory
    found = snapshot.trajectories.filter(mine).select(*_HEAD).head(1).collect().to_dicts()
    return pl.LazyFrame([_told(snapshot, row) for row in found], schema=_SCHEMA)


def _told(snapshot: Snapshot, row: Mapping[str, Any]) -> dict[str, Any]:
    steps = snapshot.steps.select("step", trained_at="finished_at")
    batched = snapshot.batches.filter(pl.col("trajectory_id") == row["trajectory_id"])
    trained = batched.sort("step").join(steps, on="step", how="left").head(1)
    about = snapshot.events.filter(
        (pl.col("subject") == row["episode_id"]) & pl.col("kind").is_in([*map(str, _LEFT)])
        | (pl.col("subject") == row["group_id"]) & (pl.col("kind") == EventKind.ADMIT)
    )
    batches, events = (f.to_dicts() for f in pl.collect_all([trained, about.sort("at", "seq")]))
    admitted = next((each["at"] for each in events if each["kind"] == EventKind.ADMIT), None)
    left = next((each for each in events if each["kind"] in _LEFT), None)
    batch = batches[0] if batches else None
    fate, end = _end(row, batch, left)
    return {
        "sentence": f"{_began(row, admitted)}; {end}.",
        "fate": fate,
        "admitted_at": admitted,
        **{name: row[name] for name in ("created_at", "finished_at", "scored_at", "committed_at")},
        "left_at": left and left["at"],
        "batched_at": batch and batch["committed_at"],
        "trained_at": batch and batch["trained_at"],
    }


def _began(row: Mapping[str, Any], admitted: datetime | None) -> str:
    created, finished = row["created_at"], row["finished_at"]
    queued = ""
    if admitted is not None:
        order = (
            ("ahead of", created, admitted) if created < admitted else ("after", admitted, created)
        )
        queued = f", {_after(*order[1:])} {order[0]} its group's admission"
    first, last = row["policy_version_start"], row["policy_version_end"]
    if first is None:
        sampled = "sampled no token that can be trained on"
    else:
        by = f"version {first}" if first == last else f"versions {first} to {last}"
        sampled = f"sampled from {by}"
    lived = _after(created, finished)
    return f"Attempt {row['attempt']} began at {created:%H:%M:%S}{queued}, {sampled} in {lived}"


def _end(
    row: Mapping[str, Any], batch: Mapping[str, Any] | None, left: Mapping[str, Any] | None
) -> tuple[str, str]:
    """Return the fate of a trajectory in a word, and in a clause."""
    scored = _scored(row)
    if batch is not None:
        lag = "" if batch["lag"] is None else f", lag {batch['lag']}"
        waited = _after(row["scored_at"] or row["finished_at"], batch["committed_at"])
        ages = f"staleness {batch['staleness']}{lag}"
        verb = "trained on" if batch["trained_at"] is not None else "put into the batch"
        return (
            "trained",
            f"{scored}, and was {verb} in step {batch['step']} after {waited} ({ages})",
        )
    because = row["reason"] or row["outcome"]
    if row["outcome"] not in {str(outcome) for outcome in TRAINABLE}:
        error = f": {row['error']}" if row["error"] else ""
        return because, f"not trained on, since it ended as {row['outcome']} ({because}){error}"
    if row["split"] != Split.TRAIN:
        return "evaluation", f"{scored}, and is not trained on, since it is of the evaluation"
    if left is not None:
        by = json.loads(left["detail"]).get("filter")
        how = "evicted with its group" if left["kind"] == EventKind.EVICT else "dropped"
        why = f"{left['reason']}{f', filter {by}' if by else ''}"
        return left["reason"], f"{scored}, and was {how} at {left['at']:%H:%M:%S} untrained ({why})"
    if row["policy_version_start"] is None and row["reason"] is not None:
        return because, f"{scored}, and was not trained on ({because})"
    return "in the buffer", f"{scored}, and no step has trained on it so far"


def _scored(row: Mapping[str, Any]) -> str:
    if row["reward"] is None:
        return "it was never scored"
    if row["scored_at"] is None:
        return f"it got reward {row['reward']:g}"
    return f"it got reward {row['reward']:g} after {_after(row['finished_at'], row['scored_at'])}"


def _after(first: datetime, second: datetime) -> str:
    return f"{(second - first).total_seconds():.1f} s"


_MOMENT = pl.Datetime("us", "UTC")
_SCHEMA = pl.Schema({
    "sentence": pl.String(), "fate": pl.String(), "admitted_at": _MOMENT, "created_at": _MOMENT,
    "finished_at": _MOMENT, "scored_at": _MOMENT, "committed_at": _MOMENT, "left_at": _MOMENT,
    "batched_at": _MOMENT, "trained_at": _MOMENT,
})  # fmt: skip
