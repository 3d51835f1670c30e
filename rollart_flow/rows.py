"""Conversion of frozen values to rows of the tables and back.

A field of `Trajectory` is a column of `trajectories` of the same name, except for its verdicts
(`verdict_rows`) and exchanges (`exchange_rows`), from which `delivered_fraction` follows.
A new field of numbers, texts or lists of them needs no change here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.episode_rows import as_episodes
from rollart_flow.schema import to_table
from rollart_flow.types import (
    Event,
    Image,
    Outcome,
    Reason,
    Sample,
    Sampling,
    Split,
    Trajectory,
    Turn,
    solved_by,
)

SAMPLE_COLUMNS = (
    "trajectory_id", "group_id", "domain", "attempt", "outcome", "policy_version_start",
    "policy_version_end", "reward", "error", "task_id", "solved", "episode_id", "branch",
)  # fmt: skip

_NAMES = {
    kind: tuple(field.name for field in fields(kind)) for kind in (Trajectory, Turn, Sampling)
}


_ELSEWHERE = frozenset({"verdicts", "reward_verdicts", "exchanges"})
"""Fields of a trajectory that are rows of other tables (`attempt_rows`)."""
_COLUMNS = tuple(name for name in _NAMES[Trajectory] if name not in _ELSEWHERE)
_columns = attrgetter(*_COLUMNS)
_fields = {kind: attrgetter(*_NAMES[kind]) for kind in (Turn, Sampling)}
"""Values of the names above, all in one call."""


def trajectories_table(trajectories: Iterable[Trajectory]) -> pa.Table:
    """Uncommitted rows of `trajectories`."""
    return to_table("trajectories", [trajectory_row(t) for t in trajectories])


def _parts(trajectory: Trajectory) -> list[dict[str, Any]] | None:
    if trajectory.reward_parts is None:
        return None
    return [{"name": name, "value": value} for name, value in trajectory.reward_parts.items()]


def _values(value: Turn | Sampling) -> dict[str, Any]:
    """Fields by name, without the deep copy of `dataclasses.asdict`."""
    kind = type(value)
    return dict(zip(_NAMES[kind], _fields[kind](value), strict=True))


def trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    """A row of `trajectories` as a mapping, without `seq` and `committed_at`."""
    row: dict[str, Any] = dict(zip(_COLUMNS, _columns(trajectory), strict=True))
    row["turns"] = [_values(turn) for turn in trajectory.turns]
    row["sampling"] = _values(trajectory.sampling)
    row["reward_parts"] = _parts(trajectory)
    row["delivered_fraction"] = trajectory.delivered_fraction
    if trajectory.images is not None:
        row["images"] = [image.image_id for image in trajectory.images]
    return row


def trajectory_from_row(row: Mapping[str, Any]) -> Trajectory:
    """A `Trajectory` from one row as a mapping; `seq` and `committed_at` are ignored."""
    values = {name: _tuples(row[name]) for name in _COLUMNS}
    sampling = dict(row["sampling"])
    for name in ("stop_token_ids", "allowed_token_ids"):
        sampling[name] = tuple(sampling[name])
    values["sampling"] = Sampling(**sampling)
    values["outcome"] = Outcome(row["outcome"])
    values["split"] = Split(row["split"])
    values["reason"] = None if row["reason"] is None else Reason(row["reason"])
    values["turns"] = tuple(Turn(**turn) for turn in row["turns"])
    for name in ("branch", "shared_tokens"):
        values[name] = values[name] or 0  # null in rows of earlier versions
    if row["images"] is not None:
        values["images"] = tuple(map(Image, row["images"]))
    if row["reward_parts"] is not None:
        values["reward_parts"] = {part["name"]: part["value"] for part in row["reward_parts"]}
    return Trajectory(**values)


def _tuples(value: Any) -> Any:
    """A value of a row with tuples for its lists, at any depth."""
    if not isinstance(value, list):
        return value
    nested = bool(value) and isinstance(value[0], list)
    return tuple(map(_tuples, value)) if nested else tuple(value)


def samples(trajectories: pa.Table) -> list[Sample]:
    """The control plane's summary of each episode in rows of `trajectories`; reads no token data.

    Rows without tokens have their number in the column `tokens` (`operators.held_rows`).
    """
    rows = trajectories.select(list(SAMPLE_COLUMNS))
    counted = "tokens" in trajectories.column_names
    counts = trajectories["tokens"] if counted else pc.list_value_length(trajectories["token_ids"])
    rows = rows.append_column("tokens", counts)
    return [sample_from_row(row) for row in as_episodes(rows).to_pylist()]


def sample_from_row(row: Mapping[str, Any]) -> Sample:
    """A `Sample` from a mapping with `SAMPLE_COLUMNS` and the number of `tokens`."""
    return Sample(
        trajectory_id=row["trajectory_id"],
        group_id=row["group_id"],
        domain=row["domain"],
        attempt=row["attempt"],
        outcome=Outcome(row["outcome"]),
        policy_version_start=row["policy_version_start"],
        policy_version_end=row["policy_version_end"],
        scored=row["reward"] is not None,
        tokens=row["tokens"],
        error=row["error"],
        task_id=row["task_id"],
        solved=solved_by(row["solved"], row["reward"]),
    )


def events_table(events: Iterable[tuple[datetime, Event]]) -> pa.Table:
    """Uncommitted rows of `events` from pairs of (time in UTC, event)."""
    return to_table(
        "events",
        [
            {
                "at": at,
                "kind": event.kind,
                "subject": event.subject,
                "reason": event.reason,
                "domain": event.domain,
                "policy_version": event.policy_version,
                "step": event.step,
                "detail": json.dumps(dict(event.detail), sort_keys=True),
            }
            for at, event in events
        ],
    )


def to_ipc(table: pa.Table) -> bytes:
    """Encode a table as one Arrow IPC stream, which carries rows between processes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def from_ipc(data: bytes | pa.Buffer) -> pa.Table:
    """Decode a table that `to_ipc` wrote, without copying its data."""
    return pa.ipc.open_stream(data).read_all()
