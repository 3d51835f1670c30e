"""The time of trajectories as spans, in seconds since the first of them was created.

The seconds of turns are stored and follow each other, from the end of the reset or from the
admission of a group that was reset ahead of it; the rest of the time until the trajectory finished
is one span of waiting. Calls of captured agents have moments of their own.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import polars as pl

from rollart_flow.store.snapshot import Snapshot
from rollart_flow.types import EventKind

SpanRow: TypeAlias = tuple[str, str, str, str, float, float, int | None, int | None, int | None]
_MOMENTS = ("created_at", "finished_at", "scored_at", "batched_at", "trained_at")
_SCHEMA = pl.Schema({
    "trajectory_id": pl.String, "domain": pl.String, "lane": pl.String, "span": pl.String,
    "start_s": pl.Float64, "end_s": pl.Float64, "turn": pl.Int64, "version_first": pl.Int64,
    "version_last": pl.Int64,
})  # fmt: skip


def spans_of_trajectory(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return the spans of one trajectory.

    Columns: trajectory_id, domain, lane (environment, policy, queue, reward or training), span,
    start_s, end_s, turn, and the first and last policy version that sampled in the span; null if
    none did.
    """
    mine = snapshot.trajectories.filter(pl.col("trajectory_id") == trajectory)
    batches = snapshot.batches.filter(pl.col("trajectory_id") == trajectory)
    return _spans(snapshot, mine.head(1), batches.sort("step").head(1))


def spans_of_step(snapshot: Snapshot, step: int) -> pl.LazyFrame:
    """Return the spans of the trajectories that a step trained on, in the order of their creation.

    Columns: those of `spans_of_trajectory`.
    """
    batches = snapshot.batches.filter(pl.col("step") == step)
    return _spans(snapshot, snapshot.trajectories, batches, how="inner")


def _spans(
    snapshot: Snapshot, rows: pl.LazyFrame, batches: pl.LazyFrame, how: Any = "left"
) -> pl.LazyFrame:
    batched = batches.select("trajectory_id", "step", batched_at="committed_at")
    trained = snapshot.steps.select("step", trained_at="finished_at")
    versions = pl.col("token_versions")
    found = (
        rows.join(batched, on="trajectory_id", how=how)
        .join(trained, on="step", how="left")
        .select(
            "trajectory_id",
            "episode_id",
            "group_id",
            "domain",
            "turns",
            "reset_s",
            versions,
            *_MOMENTS,
        )
        .sort("created_at", "trajectory_id")
        .collect()
    )
    episodes = found["episode_id"].unique().to_list()
    calls = snapshot.exchanges.filter(pl.col("episode_id").is_in(episodes)).select(
        "trajectory_id", "number", "arrived_at", "generating_at", "ended_at", "answer_start",
        "answer_end",
    ).sort("arrived_at").collect()  # fmt: skip
    by_row = {str(name): part.to_dicts() for (name,), part in calls.group_by("trajectory_id")}
    admissions = _admissions(snapshot, found["group_id"].unique().to_list())
    origin = found["created_at"].min()
    made: list[SpanRow] = []
    for row in found.to_dicts():
        own = sorted(by_row.get(row["trajectory_id"], []), key=_number)
        made += _of_row(row, own, admissions.get(row["group_id"]), origin)
    return pl.LazyFrame(made, schema=_SCHEMA, orient="row")


def _admissions(snapshot: Snapshot, groups: list[str]) -> dict[str, datetime]:
    """Return when groups were admitted, the first time of each."""
    of_groups = pl.col("subject").is_in(groups) & (pl.col("kind") == str(EventKind.ADMIT))
    first = snapshot.events.filter(of_groups).group_by("subject").agg(pl.col("at").min())
    return dict(first.collect().iter_rows())


def _number(call: Mapping[str, Any]) -> int:
    return int(call["number"])


def _of_row(
    row: Mapping[str, Any], calls: list[dict[str, Any]], admitted_at: datetime | None, origin: Any
) -> Iterator[SpanRow]:
    moments = {name: _seconds(row[name], origin) for name in _MOMENTS}
    created = moments["created_at"] or 0.0
    admitted = min(_seconds(admitted_at, origin) or 0.0, moments["finished_at"] or 0.0)
    inner = _of_calls(row, calls, created, origin) if calls else _of_turns(row, created, admitted)
    at = created
    for lane, span, start, end, turn, version in inner:
        yield (row["trajectory_id"], row["domain"], lane, span, start, end, turn, *version)
        at = max(at, end)
    later = (
        ("queue", "wait in rollout", moments["finished_at"]),
        ("reward", "reward", moments["scored_at"]),
        ("queue", "wait in buffer", moments["batched_at"]),
        ("training", "training step", moments["trained_at"]),
    )
    for lane, span, finish in later:
        if finish is not None and finish > at:
            yield row["trajectory_id"], row["domain"], lane, span, at, finish, None, None, None
            at = finish


Part: TypeAlias = tuple[str, str, float, float, int | None, tuple[int | None, int | None]]


def _of_turns(row: Mapping[str, Any], at: float, admitted: float) -> Iterator[Part]:
    none = None, None
    yield "environment", "reset", at, at + row["reset_s"], None, none
    at += row["reset_s"]
    if admitted > at:
        yield "queue", "wait for admission", at, admitted, None, none
        at = admitted
    for number, turn in enumerate(row["turns"]):
        sampled = _versions(row, turn["start"], turn["end"])
        yield "policy", "generate", at, at + turn["generate_s"], number, sampled
        at += turn["generate_s"]
        yield "environment", "step", at, at + turn["step_s"], number, none
        at += turn["step_s"]


def _of_calls(
    row: Mapping[str, Any], calls: list[dict[str, Any]], at: float, origin: datetime
) -> Iterator[Part]:
    none = None, None
    for call in calls:
        number = call["number"]
        arrived, ended = (
            _seconds(call[name], origin) or 0.0 for name in ("arrived_at", "ended_at")
        )
        began = _seconds(call["generating_at"], origin)
        waited = ended if began is None else began
        if arrived > at:
            yield "environment", "agent and its tools", at, arrived, number, none
        yield "queue", "wait for the engine", arrived, waited, number, none
        if began is not None:
            sampled = _versions(row, call["answer_start"], call["answer_end"])
            yield "policy", "generate", began, ended, number, sampled
        at = ended


def _versions(row: Mapping[str, Any], start: int, end: int) -> tuple[int | None, int | None]:
    """Return the first and the last policy version that sampled tokens of a part of the chain."""
    sampled = [version for version in row["token_versions"][start:end] if version >= 0]
    return (sampled[0], sampled[-1]) if sampled else (None, None)


def _seconds(moment: datetime | None, origin: datetime) -> float | None:
    return None if moment is None else (moment - origin).total_seconds()
