"""The state of a run, read from its tables alone.

The tables are authoritative: a committed row is neither lost nor used twice, and a manifest without
a row of `steps` is trained first. This module reads the rows; `control.recovery` derives the state
of the scheduler and the buffer from them.
"""

import json
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from rollart_flow.control import recovery as control
from rollart_flow.rows import SAMPLE_COLUMNS, sample_from_row
from rollart_flow.schema import row_schema
from rollart_flow.store import Run, Snapshot
from rollart_flow.types import Batch, Event, EventKind, Reason, Sample, Split

_RECORDED = (EventKind.ADMIT, EventKind.ABANDON, EventKind.DROP, EventKind.EVICT)


@dataclass(frozen=True, slots=True)
class RecoveredRun:
    """State from which a run continues, as recovered from its tables."""

    start: int
    """Version that the run started from: 0, or the version that it was forked at."""
    version: int
    """Newest version that the run has: the number of its last recorded step."""
    checkpoint: int
    """Newest version up to `version` that has a checkpoint, or `start` if there is none."""
    untrained: Batch | None
    """Batch of the next step if it was formed, else None."""
    evaluated: frozenset[int]
    """Versions that were evaluated."""
    control: control.RecoveredControl
    """State of the scheduler and the buffer."""
    pending_rows: pa.Table | None = None
    """Rows of the pending trajectories, in order; None in the copy of `without_rows`."""

    def without_rows(self) -> "RecoveredRun":
        """Return a small copy, without the rows, to send to other processes."""
        return replace(self, pending_rows=None)

    def due_versions(self, steps: int, every: int | None) -> tuple[int, ...]:
        """Return the versions still to evaluate, in order, including the run's start version."""
        if every is None:
            return ()
        due = (evaluated_versions(steps, every) | {self.start}) - self.evaluated
        return tuple(sorted(version for version in due if version >= self.start))


def evaluated_versions(steps: int, every: int | None) -> frozenset[int]:
    """Return all versions that a run evaluates: version 0, every `every`-th one, and the last.

    The set is empty if `every` is None.
    """
    return frozenset() if every is None else frozenset({*range(0, steps, every), steps})


def recover(run: Run) -> RecoveredRun:
    """Read the state of a run. No process may write to the run meanwhile."""
    now = run.snapshot()
    start = 0 if run.info.parent is None else run.info.parent.step
    version = _newest(now.steps, "step", start)
    trained = now.batches.select("trajectory_id", "group_id").collect()
    recovered = control.recover(_events(now), _samples(now), dict(trained.iter_rows()))
    checkpoints = now.weights.filter(pl.col("checkpoint"), pl.col("policy_version") <= version)
    manifest = _newest(now.batches, "step", version)
    return RecoveredRun(
        start=start,
        version=version,
        checkpoint=_newest(checkpoints, "policy_version", start),
        untrained=batch_of(run.batch(manifest)) if manifest > version else None,
        evaluated=frozenset(now.evaluations.collect()["policy_version"].to_list()),
        control=recovered,
        pending_rows=_rows(now, [sample.trajectory_id for sample in recovered.pending]),
    )


def _newest(rows: pl.LazyFrame, column: str, least: int) -> int:
    newest = rows.select(pl.col(column).max()).collect().item()
    return least if newest is None else max(least, int(newest))


def _events(now: Snapshot) -> list[Event]:
    rows = now.events.filter(pl.col("kind").is_in(_RECORDED)).sort("seq").collect()
    return [
        Event(
            kind=EventKind(row["kind"]),
            subject=row["subject"],
            reason=None if row["reason"] is None else Reason(row["reason"]),
            domain=row["domain"],
            detail=json.loads(row["detail"]),
        )
        for row in rows.iter_rows(named=True)
    ]


def _training(now: Snapshot) -> pl.LazyFrame:
    """Return the trajectories of the training split, each once, in commit order."""
    rows = now.trajectories.filter(pl.col("split") == Split.TRAIN).sort("seq")
    return rows.unique("trajectory_id", keep="first", maintain_order=True)


def _samples(now: Snapshot) -> list[Sample]:
    tokens = pl.col("token_ids").list.len().alias("tokens")
    rows = _training(now).select(*SAMPLE_COLUMNS, tokens).collect()
    return [sample_from_row(row, row["tokens"]) for row in rows.iter_rows(named=True)]


def _rows(now: Snapshot, trajectory_ids: list[str]) -> pa.Table:
    schema = row_schema("trajectories")
    wanted = pl.LazyFrame({"trajectory_id": trajectory_ids}, schema={"trajectory_id": pl.String})
    rows = wanted.join(
        _training(now), on="trajectory_id", how="left", maintain_order="left"
    ).select(schema.names)
    return rows.collect().to_arrow().cast(schema)


def batch_of(rows: pa.Table) -> Batch:
    """Build a `Batch` from the rows that `Run.batch` returns."""
    first = rows.slice(0, 1).to_pylist()[0]
    return Batch(
        step=first["step"],
        policy_version=first["policy_version"],
        trained_version=first["trained_version"],
        trajectory_ids=tuple(rows["trajectory_id"].to_pylist()),
        group_ids=tuple(rows["group_id"].to_pylist()),
        staleness=tuple(rows["staleness"].to_pylist()),
    )
