"""Spans of a run: what began and ended when, from the times in its rows.

A trajectory is a trace, and a step is one; ids follow from those of the tables, so that a span
which is exported again is the same one. Rows have the beginning and the end of attempts, calls,
rewards and commits, and durations of turns and phases: turns are laid one after the other from the
end of the reset, or from the admission of a group that was reset ahead of it, and training before
the end of its step.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from rollart_flow.metrics.window import RecordKind, Window
from rollart_flow.types import EventKind

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_ATTEMPT = ("trajectory_id", "episode_id", "group_id", "domain", "outcome", "reward", "split",
            "policy_version_start")  # fmt: skip
_TIMES = "created_at", "finished_at", "scored_at", "committed_at", "reset_s", "seq"
_TURN = "generate_s", "step_s", "worker", "hardware"
_PHASES = (EventKind.SUSPEND, EventKind.UPDATE, EventKind.RESUME)


@dataclass(frozen=True, slots=True)
class RunSpan:
    """One span."""

    name: str
    trace: str
    """Name of its trace: that of the trajectory or the step."""
    key: str
    """Name of the span within the trace; empty: the root."""
    start: datetime
    end: datetime
    parent: str | None = ""
    """Key of its parent; None for the root."""
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    """Traces whose roots it is linked with."""


def trace_id(run_id: str, trace: str) -> int:
    """Return the id of a trace, of 128 bits."""
    return int.from_bytes(hashlib.sha256(f"{run_id}/{trace}".encode()).digest()[:16])


def span_id(run_id: str, trace: str, key: str) -> int:
    """Return the id of a span, of 64 bits."""
    return int.from_bytes(hashlib.sha256(f"{run_id}/{trace}/{key}".encode()).digest()[:8])


def nanoseconds(moment: datetime) -> int:
    """Return nanoseconds since 1970, as spans have them."""
    return (moment - _EPOCH) // _MICROSECOND * 1_000


def run_spans(window: Window) -> Iterator[RunSpan]:
    """Give the spans of a record: its attempts, and of a step the step itself."""
    calls: dict[str, list[dict[str, Any]]] = {}
    if window.mark.kind is RecordKind.STEP:
        for call in window.rows("exchanges").iter_rows(named=True):
            calls.setdefault(call["trajectory_id"], []).append(call)
    admissions = window.admissions()
    turns = [pl.col("turns").list.eval(pl.element().struct.field(n)).alias(n) for n in _TURN]
    for row in window.attempts.select(*_ATTEMPT, *_TIMES, *turns).iter_rows(named=True):
        admitted = admissions.get(row["group_id"], row["created_at"])
        yield from _trajectory(row, calls.get(row["trajectory_id"], []), admitted)
    if window.mark.kind is RecordKind.STEP:
        yield from _step(window)


def _trajectory(
    row: Mapping[str, Any], calls: list[dict[str, Any]], admitted: datetime
) -> Iterator[RunSpan]:
    trace = row["trajectory_id"]
    about = {name: row[name] for name in _ATTEMPT if row[name] is not None}
    end = row["committed_at"]
    yield RunSpan("trajectory", trace, "", row["created_at"], end, None, about)
    yield from _calls(trace, calls) if calls else _turns(trace, row, admitted)
    if row["scored_at"] is not None:
        yield RunSpan("reward", trace, "reward", row["finished_at"], row["scored_at"])
    begun = row["scored_at"] or row["finished_at"]
    yield RunSpan("commit", trace, "commit", begun, end, "", {"seq": row["seq"]})


def _turns(trace: str, row: Mapping[str, Any], admitted: datetime) -> Iterator[RunSpan]:
    at = max(admitted, row["created_at"] + timedelta(seconds=row["reset_s"]))
    turns = zip(*(row[name] for name in _TURN), strict=True)
    for number, (generate_s, step_s, worker, hardware) in enumerate(turns):
        said = at + timedelta(seconds=generate_s)
        done = said + timedelta(seconds=step_s)
        key = f"turn {number}"
        about = {"turn": number, "worker": worker, "hardware": hardware}
        yield RunSpan("turn", trace, key, at, done, "", {"turn": number, "laid_out": True})
        yield RunSpan("generation", trace, f"{key} generation", at, said, key, about)
        yield RunSpan("environment step", trace, f"{key} step", said, done, key, {"turn": number})
        at = done


def _calls(trace: str, calls: list[dict[str, Any]]) -> Iterator[RunSpan]:
    for call in calls:
        key, about = f"call {call['number']}", {"call": call["number"], "kind": call["kind"]}
        yield RunSpan("turn", trace, key, call["arrived_at"], call["ended_at"], "", about)
        if (begun := call["generating_at"]) is not None:
            first = call["first_token_at"]
            about = {} if first is None else {"first_token_s": (first - begun).total_seconds()}
            yield RunSpan(
                "generation", trace, f"{key} generation", begun, call["ended_at"], key, about
            )


def _step(window: Window) -> Iterator[RunSpan]:
    row = window.step_row()
    step, end = row["step"], row["finished_at"]
    trace = f"step {step}"

    def before(moment: datetime, column: str) -> datetime:
        return moment - timedelta(seconds=row[column])

    about = {"step": step, "loss": row["loss"], "reward_mean": row["reward_mean"]}
    yield RunSpan("step", trace, "", before(end, "step_s"), end, None, about)
    trained = before(end, "publish_s")
    yield RunSpan("train", trace, "train", before(trained, "train_s"), trained)
    if window.batch.height:
        formed = window.batch["committed_at"][0]
        links = tuple(window.batch["trajectory_id"])
        yield RunSpan("batch", trace, "batch", before(formed, "wait_s"), formed, "", {}, links)
    for version in window.rows("weights").iter_rows(named=True):
        about = {"policy_version": version["policy_version"], "bytes": version["size_bytes"]}
        at = version["published_at"]
        begun = before(at, "publish_s")
        yield RunSpan(
            "weight publication",
            trace,
            f"publication {version['policy_version']}",
            begun,
            at,
            "",
            about,
        )
    phases = window.rows("events").filter(pl.col("kind").is_in([str(kind) for kind in _PHASES]))
    for event in phases.iter_rows(named=True):
        seconds = json.loads(event["detail"]).get("seconds", 0.0)
        begun = event["at"] - timedelta(seconds=seconds)
        key = f"{event['kind']} {event['step']}"
        yield RunSpan(
            event["kind"], trace, key, begun, event["at"], "", {"subject": event["subject"]}
        )
