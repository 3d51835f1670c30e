"""The train operator: takes one batch and returns one row of `steps`.

Data becomes durable in an order that makes a kill at any moment resumable: the manifest (`batches`)
while the step trains, before anything that results from the step leaves the trainer; then the
weight files and the checkpoint, concurrently, before the rows that name them; last the row of
`steps`, in one commit with its row of `weights`. Only then is the step reported as trained. If a
trainer has several ranks, the first one answers for all.

A version that need not outlive the processes may still be on its way to the weight store when its
rows are committed and while the next step trains. If a kill loses it, resuming recomputes it from
the newest checkpoint. Engines swap to a version only after it is both published and recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.parts.branches import BranchWeight
from rollart_flow.errors import BatchError
from rollart_flow.operators.batch_columns import Prepared, estimate, prepare
from rollart_flow.operators.batch_statistics import rewards_by_domain, statistics
from rollart_flow.operators.drawn_columns import with_drawn
from rollart_flow.operators.stored_rows import StoredRows, StoredSource
from rollart_flow.operators.trained import trained_block
from rollart_flow.resources import Remote, TypedCluster
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.local import wait
from rollart_flow.rows import events_table, from_ipc, to_ipc
from rollart_flow.schema import to_table
from rollart_flow.store.images import with_images
from rollart_flow.trainers.checkpoint.retention import checkpoint_folder, retain_checkpoints
from rollart_flow.types import Event, EventKind, Retried
from rollart_flow.weights.rows import weights_table
from rollart_flow.weights.terms import FolderTerm

if TYPE_CHECKING:
    from ray import ObjectRef

    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.run_coordinator import RunCoordinator
    from rollart_flow.trainers.base import StepResult
    from rollart_flow.trainers.checkpoint.publishing import Publication
    from rollart_flow.trainers.worker import TrainWorker


@dataclass(frozen=True, slots=True)
class TrainContext:
    """Handles and settings of the train operator, sent to its process."""

    run: str
    """Address of the run."""
    algorithm: Algorithm
    branch_weight: BranchWeight
    """Weight of an episode of several rows."""
    trainers: TypedCluster[TrainWorker]
    buffer: Remote[BufferActor]
    coordinator: Remote[RunCoordinator]
    checkpoints: str
    term: FolderTerm
    """Part of the names of checkpoints."""
    checkpoint_every: int
    keep_versions: int
    keep_checkpoints: int | None
    steps: int
    evaluated: frozenset[int]
    """All versions that the run evaluates at some time."""
    start: int
    """Version that the run started from."""
    max_skipped: int
    """Maximum number of consecutive steps that may be skipped."""
    overlap_publish: bool
    """Whether versions that need not last may be published while the next step trains."""
    stored: tuple[StoredSource, ...] = ()
    """Sources whose rows are trained on beside those of a batch."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Function that reports to the coordinator that a version can be read."""

    coordinator: Remote[RunCoordinator]

    def __call__(self, version: int, push_s: float) -> None:
        """Report a version, whose publication took `push_s` seconds."""
        self.coordinator.call.published(version, push_s)


class TrainOperator:
    """Operator that trains on one batch at a time; batches arrive in order of their step."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        report_waits(context.run, "train")
        self._ended = time.monotonic()
        self._checkpoints: frozenset[int] | None = None
        self._retried: list[Retried] = []
        """Calls that the weight store repeated and that no event tells yet."""
        self._skipped = 0
        """Number of consecutive steps that were skipped in this process."""
        self._stored = [StoredRows(context.run, source) for source in context.stored]

    def __call__(self, block: pa.Table) -> pa.Table:
        """Train on the batch of a one-row block; return a block for `trained.read_trained`."""
        (batch,) = block.to_pylist()
        step, rows = batch["step"], from_ipc(batch["rows"])
        if "advantage" not in rows.column_names:
            rows = self._with_stored(batch, rows)
        rows = with_images(self._context.run, rows)
        if "advantage" in rows.column_names:  # a manifest that was written before a restart
            algorithm = self._context.algorithm
            zero_variance = estimate(algorithm, rows, self._assess).zero_variance_groups
            result, facts = self._train(step, rows, zero_variance)
        else:
            trained_version = batch["trained_version"]
            algorithm, weight = self._context.algorithm, self._context.branch_weight
            prepared = prepare(algorithm, rows, trained_version, self._assess, weight)
            rows, zero_variance = prepared.rows, prepared.zero_variance_groups
            result, facts = self._train(step, rows, zero_variance, _manifest(batch, prepared))
        self._check_skipped(result)
        return self._record(rows, result, facts)

    def _with_stored(self, batch: Mapping[str, Any], rows: pa.Table) -> pa.Table:
        """Append the stored rows that are mixed into a batch."""
        versions = batch["policy_version"], batch["trained_version"]
        names = rows["episode_id"].to_pylist() if self._stored else ()
        drawn = [each.rows(batch["step"], versions, names) for each in self._stored]
        return with_drawn(rows, drawn)

    def _train(
        self, step: int, rows: pa.Table, zero_variance: int, manifest: pa.Table | None = None
    ) -> tuple[StepResult, dict[str, Any]]:
        """Train on a batch, and meanwhile count it and commit its manifest, if it has a new one.

        Returns:
            What the trainer says, and the columns of `steps` that are known of the batch.
        """
        training = self._context.trainers.call.train_step.begin(step, to_ipc(rows))
        committed = None if manifest is None else self._begin_commit({"batches": manifest})
        facts = _facts(rows, step, zero_variance)
        result = training()
        if committed is not None:
            wait(committed, f"commit of the batch of step {step}")
        return result, facts

    def _check_skipped(self, result: StepResult) -> None:
        """Count skipped steps.

        Raises:
            BatchError: too many steps in a row were skipped; this one is not recorded.
        """
        self._skipped = 0 if result.skipped is None else self._skipped + 1
        if self._skipped > self._context.max_skipped:
            raise BatchError(
                f"{result.skipped}; {self._context.max_skipped} steps in a row may be skipped "
                "(train.max_skipped)"
            )

    def _assess(self, rows: pa.Table) -> pa.Table:
        return from_ipc(self._context.trainers.call.recompute_old_logprobs(to_ipc(rows)))

    def _record(self, rows: pa.Table, result: StepResult, facts: Mapping[str, Any]) -> pa.Table:
        """Publish and checkpoint a step, commit its rows, and report it as trained."""
        context, step = self._context, result.step
        checkpoint = step % context.checkpoint_every == 0 or step == context.steps
        if checkpoint:
            folder = checkpoint_folder(context.checkpoints, step, context.term)
            context.trainers.call.begin_save(folder)
        started = time.monotonic()
        # A separate call: in the one that gathers the weights, the other ranks could time out.
        self._finish_publish()
        phases = context.coordinator.call.phases.begin(step)
        published = self._publish(step, checkpoint=checkpoint)
        publish_s = time.monotonic() - started
        if checkpoint:
            context.trainers.call.finish_save()
        events = self._events(result, checkpoint=checkpoint)
        ended, now = time.monotonic(), datetime.now(UTC)
        step_s, spent = ended - self._ended, phases()
        row = {
            **asdict(result),
            **facts,
            **spent,
            "wait_s": min(spent["wait_s"], step_s),  # the first wait began before this process
            "publish_s": publish_s,
            "step_s": step_s,
            "finished_at": now,
        }
        self._ended = ended
        tables = {
            "weights": weights_table(published.manifest, now, checkpoint=checkpoint),
            "events": events_table((now, event) for event in events),
            "steps": to_table("steps", [row]),
        }
        committing = self._begin_commit(tables)
        rewards = rewards_by_domain(rows)
        committed: int = wait(committing, "commit of a step")
        # A coordinator that was restarted before this commit has not heard of the version before.
        context.coordinator.call.published.start(step - 1, 0.0)
        push_s = None if published.under_way else publish_s
        self._retain(step, context.coordinator.call.trained(step, push_s), checkpoint=checkpoint)
        if not published.under_way:
            self._finish_publish()
        return trained_block(tables["steps"], rewards, committed)

    def _events(self, result: StepResult, *, checkpoint: bool) -> list[Event]:
        """Return the events of a step, and free the memory of trainers that share their devices."""
        step, events = result.step, []
        if checkpoint:
            events = [Event(EventKind.CHECKPOINT, str(step), policy_version=step, step=step)]
        if (why := result.skipped) is not None:
            events.append(Event(EventKind.SKIP, str(step), step=step, detail={"error": why}))
        events += self._offload(step)
        events += [retried.event("trainer", step) for retried in self._retried]
        self._retried = []
        return events

    def _offload(self, step: int) -> list[Event]:
        """Free the devices that engine workers hold in turns with the trainer."""
        placements = [worker.placement for worker in self._context.trainers.workers]
        if not any(placement.in_turns for placement in placements):
            return []
        return [
            Event(EventKind.RELEASE, placement.worker, step=step, detail={"bytes": freed})
            for placement, freed in zip(
                placements, self._context.trainers.call.offload(), strict=True
            )
        ]

    def _publish(self, step: int, *, checkpoint: bool) -> Publication:
        """Publish the version of a step, or start to; the preceding version is published."""
        context = self._context
        context.coordinator.call.publishing.start(step)
        lasting = checkpoint or step in context.evaluated
        if lasting or not context.overlap_publish:
            published = context.trainers.call.publish(lasting=lasting)
        else:
            published = context.trainers.call.begin_publish(Announcement(context.coordinator))
        assert published is not None, "the result is the first rank's"
        return published

    def _finish_publish(self) -> None:
        self._retried += self._context.trainers.call.finish_publish()

    def _retain(self, step: int, needed: frozenset[int], *, checkpoint: bool) -> None:
        """Remove old checkpoints, and all versions but the newest and those that are needed."""
        context = self._context
        if checkpoint or self._checkpoints is None:
            self._checkpoints = retain_checkpoints(
                context.checkpoints, context.keep_checkpoints, context.start, context.term
            )
        keep = needed | {context.start} | self._checkpoints
        context.trainers.call.retain(context.keep_versions, keep)

    def _begin_commit(self, tables: Mapping[str, pa.Table]) -> ObjectRef[int]:
        """Start to commit rows together.

        Returns:
            Reference to the number of trajectories that the run has committed by then.
        """
        encoded = {table: to_ipc(rows) for table, rows in tables.items() if rows.num_rows}
        return self._context.buffer.call.commit.start(encoded)


def _facts(rows: pa.Table, step: int, zero_variance: int) -> dict[str, Any]:
    """Return the columns of `steps` that are known of a batch before it is trained on."""
    found = statistics(rows, step)
    return {**found, "policy_version": step, "zero_variance_groups": zero_variance}


def _manifest(batch: Mapping[str, Any], prepared: Prepared) -> pa.Table:
    """Build the rows of `batches` for a batch."""
    stored = prepared.rows.select(list(prepared.stored)).to_pylist()
    said = {"step": batch["step"], "policy_version": batch["policy_version"]}
    rows = [{**row, **said, "position": position} for position, row in enumerate(stored)]
    return to_table("batches", rows)
