"""The state of a run, read from its tables alone.

The tables are authoritative: a committed row is neither lost nor used twice, and a manifest without
a row of `steps` is trained first. This module reads the rows; `control.recovery` derives the state
of the scheduler and the buffer from them.

The invariant: the memory that this takes does not depend on the length of the run. Tables are read
in parts; what is kept are rows of groups that have not left, and of the newest trajectories. Token
data is read for pending trajectories only.
"""

import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.control import recovery as control
from rollart_flow.control.ids import group_cursor
from rollart_flow.rows import SAMPLE_COLUMNS, samples
from rollart_flow.schema import row_schema
from rollart_flow.store import Run, Snapshot
from rollart_flow.store.away import repeated_query
from rollart_flow.store.damage import reading
from rollart_flow.types import Batch, Event, EventKind, Reason, Sample, Split

_OPENED = (EventKind.ADMIT, EventKind.PREPARE)
_RECORDED = (*_OPENED, EventKind.ABANDON, EventKind.DROP, EventKind.EVICT)
_CRASHED = pl.col("kind") == EventKind.CRASH
_QUARANTINED = pl.col("kind") == EventKind.QUARANTINE
_RECENT = 20_000
"""How many of the newest trajectories, and of the groups that left, are recognized if they arrive
again."""
_EPISODE = pl.coalesce("episode_id", "trajectory_id").alias("episode_id")
"""The episode of a row of `batches`; a row of earlier versions has no other."""
_MADE = pl.col("source_seq").is_null()
"""The rows of `batches` that were made for their batch, not drawn from what is stored."""
_PART = 250_000
"""Rows of all tables that are read at once."""


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
    committed: int = 0
    """Number of committed trajectories of the training split."""
    crashes: int = 0
    """Number of processes that died so far; it numbers the processes that replace them."""
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
    """Read the state of a run. No process may write to the run meanwhile.

    Raises:
        StoreError: a table cannot be read, or a data file is missing or torn.
    """
    with reading(run.uri):
        return repeated_query(f"read the state of {run.uri}", lambda: _recovered(run))


def _recovered(run: Run) -> RecoveredRun:
    now = run.snapshot()
    start = 0 if run.info.parent is None else run.info.parent.step
    version = _newest(now.steps, "step", start)
    groups = _Groups(now)
    samples = _samples(now, groups)
    names = {name for sample in samples for name in (sample.trajectory_id, sample.group_id)}
    recovered = control.recover(
        _events(now, groups, names), samples, _trained(now, names), groups.closed
    )
    quarantined = now.events.filter(_QUARANTINED).select("subject").unique()
    recovered = replace(recovered, quarantined=frozenset(_collect(quarantined)["subject"]))
    checkpoints = now.weights.filter(pl.col("checkpoint"), pl.col("policy_version") <= version)
    manifest = _newest(now.batches, "step", version)
    return RecoveredRun(
        start=start,
        version=version,
        checkpoint=_newest(checkpoints, "policy_version", start),
        untrained=batch_of(run.batch(manifest)) if manifest > version else None,
        evaluated=frozenset(_collect(now.evaluations.select("policy_version"))["policy_version"]),
        control=recovered,
        committed=_collect(_training(now).select(pl.len())).item(),
        crashes=_collect(now.events.filter(_CRASHED).select(pl.len())).item(),
        pending_rows=_rows(now, "episode_id", [each.trajectory_id for each in recovered.pending]),
    )


def recorded_reports(run: Run) -> frozenset[tuple[datetime, str, str]]:
    """Return the time, kind and subject of the newest events, which may be reported again."""

    def read() -> frozenset[tuple[datetime, str, str]]:
        now = run.snapshot()
        newest = now.events.filter(pl.col("seq") > now.seq - _RECENT)
        return frozenset(_collect(newest.select("at", "kind", "subject")).iter_rows())

    return repeated_query(f"read the events of {run.uri}", read)


def recorded_boxes(run: Run) -> tuple[str, ...]:
    """Return the ids of the newest rows of `sandboxes`, which may be sent again."""

    def read() -> tuple[str, ...]:
        now = run.snapshot()
        newest = now.sandboxes.filter(pl.col("seq") > now.seq - _RECENT)
        return tuple(_collect(newest.select("sandbox_id"))["sandbox_id"])

    return repeated_query(f"read the sandboxes of {run.uri}", read)


def _newest(rows: pl.LazyFrame, column: str, least: int) -> int:
    newest = rows.select(pl.col(column).max()).collect().item()
    return least if newest is None else max(least, int(newest))


def _collect(rows: pl.LazyFrame) -> pl.DataFrame:
    """Read rows without holding the columns that only filters and aggregates need."""
    return rows.collect(engine="streaming")


def _parts(now: Snapshot) -> Iterator[pl.Expr]:
    """Filters of `seq` that divide the tables into parts, the oldest first."""
    for first in range(1, max(now.seq, 1) + 1, _PART):
        yield pl.col("seq").is_between(first, first + _PART - 1)


def _training(now: Snapshot) -> pl.LazyFrame:
    return now.trajectories.filter(pl.col("split") == Split.TRAIN)


class _Groups:
    """The live groups and the recent trajectories."""

    def __init__(self, now: Snapshot) -> None:
        self.live: set[str] = set()
        """Groups that were opened and have not left."""
        self.closed: dict[str, Reason] = {}
        """The groups that left last, with the reason for dropping late members."""
        self.newest: str | None = None
        """The group that was opened last."""
        kinds = (*_OPENED, EventKind.ABANDON, EventKind.EVICT)
        for part in _parts(now):
            events = now.events.filter(part, pl.col("kind").is_in(kinds)).sort("seq")
            for row in _collect(events.select("kind", "subject", "detail")).iter_rows():
                self._note(*row)
            trained = now.batches.filter(part, _MADE).select("group_id").unique(maintain_order=True)
            for group_id in _collect(trained)["group_id"]:
                self._close(group_id, Reason.GROUP_COMPLETE)
        self.recent = _seq_of_recent(now)
        """Later rows are recent."""

    def _note(self, kind: str, subject: str, detail: str) -> None:
        if kind in _OPENED:
            self.newest = max(self.newest or subject, subject, key=group_cursor)
            if subject not in self.closed:
                self.live.add(subject)
        else:
            group_id = subject if kind == EventKind.ABANDON else json.loads(detail)["group_id"]
            self._close(group_id, Reason.GROUP_EVICTED)

    def _close(self, group_id: str, reason: Reason) -> None:
        self.live.discard(group_id)
        self.closed.setdefault(group_id, reason)
        if len(self.closed) > _RECENT:
            del self.closed[next(iter(self.closed))]


def _seq_of_recent(now: Snapshot) -> int:
    """The seq before the newest `_RECENT` trajectories."""
    missing = _RECENT
    for part in reversed(list(_parts(now))):
        seqs = _collect(_training(now).filter(part).select(pl.col("seq").sort()))["seq"]
        if len(seqs) >= missing:
            return int(seqs[-missing]) - 1
        missing -= len(seqs)
    return 0


def _samples(now: Snapshot, groups: _Groups) -> list[Sample]:
    """Episodes of live groups and recent ones, each once, in commit order."""
    parts: list[pl.DataFrame] = []
    tokens = pl.col("token_ids").list.len().alias("tokens")
    wanted = pl.col("group_id").is_in(list(groups.live)) | (pl.col("seq") > groups.recent)
    for part in _parts(now):
        rows = _training(now).filter(part, wanted).select("seq", *SAMPLE_COLUMNS, tokens)
        parts.append(_collect(rows).sort("seq"))
    found: dict[str, Sample] = {}
    for sample in samples(pl.concat(parts).to_arrow()):
        found.setdefault(sample.trajectory_id, sample)
    return list(found.values())


def _trained(now: Snapshot, names: Set[str]) -> dict[str, str]:
    """Group by id of the named episodes that are in a batch."""
    found: dict[str, str] = {}
    for part in _parts(now):
        rows = now.batches.filter(part, _MADE).select(_EPISODE, "group_id")
        found |= _collect(rows.filter(pl.col("episode_id").is_in(list(names)))).iter_rows()
    return found


def _events(now: Snapshot, groups: _Groups, names: Set[str]) -> Iterator[Event]:
    """Events of live groups and of the named ones, and recent events, in commit order."""
    subjects = {*names, *groups.live, groups.newest or ""}
    wanted = pl.col("subject").is_in(list(subjects)) | (pl.col("seq") > groups.recent)
    columns = ("kind", "subject", "reason", "domain", "detail")
    for part in _parts(now):
        rows = now.events.filter(part, pl.col("kind").is_in(_RECORDED), wanted)
        for row in _collect(rows.select("seq", *columns)).sort("seq").iter_rows(named=True):
            yield Event(
                kind=EventKind(row["kind"]),
                subject=row["subject"],
                reason=None if row["reason"] is None else Reason(row["reason"]),
                domain=row["domain"],
                detail=json.loads(row["detail"]),
            )


def committed_rows(uri: str, trajectory_ids: Sequence[str]) -> pa.Table:
    """Rows of committed training trajectories of the run at an address, in this order."""
    return repeated_query(
        f"read trajectories of {uri}",
        lambda: _rows(Run(uri).snapshot(), "trajectory_id", trajectory_ids),
    )


def _rows(now: Snapshot, column: str, names: Sequence[str]) -> pa.Table:
    """Rows of trajectories or of whole episodes, in the order of their names."""
    schema = row_schema("trajectories")
    ids = pl.DataFrame({column: names}, {column: pl.String})
    wanted = pl.col(column).is_in(ids[column].implode())
    parts = [_collect(_training(now).filter(part, wanted)).sort("seq") for part in _parts(now)]
    rows = pl.concat(parts).unique("trajectory_id", keep="first", maintain_order=True)
    ordered = ids.join(rows, on=column, how="left", maintain_order="left_right")
    return ordered.select(schema.names).to_arrow().cast(schema)


def batch_of(rows: pa.Table) -> Batch:
    """Build a `Batch` from the rows of `batches` or those that `Run.batch` returns.

    Rows that were drawn from what is stored are none that the buffer knows, and so are left out.
    """
    first = rows.slice(0, 1).to_pylist()[0]
    if "source_seq" in rows.column_names:
        rows = rows.filter(pc.is_null(rows["source_seq"]))
    names = pc.coalesce(rows["episode_id"], rows["trajectory_id"]).to_pylist()
    groups, staleness = rows["group_id"].to_pylist(), rows["staleness"].to_pylist()
    episodes = {
        name: (group, age) for name, group, age in zip(names, groups, staleness, strict=True)
    }
    return Batch(
        step=first["step"],
        policy_version=first["policy_version"],
        trained_version=first["trained_version"],
        trajectory_ids=tuple(episodes),
        group_ids=tuple(group for group, _ in episodes.values()),
        staleness=tuple(age for _, age in episodes.values()),
    )
