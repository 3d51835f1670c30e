"""Blocks of the three streams' sources: attempts, batches and versions to evaluate.

A source runs as a task of Ray Data in a process of its own, so this module loads little
besides Arrow and Ray.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollart_flow.errors import BlockOverError, UnknownClientError
from rollart_flow.resources.blocking import report_waits
from rollart_flow.types import Assignment, Batch, Sampling, Split, Task

if TYPE_CHECKING:
    from rollart_flow.operators.batch_rows import BatchRows
    from rollart_flow.operators.coordinator import CoordinatorActor
    from rollart_flow.operators.run_coordinator import RunCoordinator
    from rollart_flow.resources import Remote


NextBlock = Callable[[int], pa.Table | None]
"""Function from an index to that block of a stream, or to None at the end of the stream.

If the process of a source dies, another one asks for all blocks again, from the first one on. A
repeated call with the same index returns the same block or, if the stream has finished with it, an
empty one: the stream takes no block twice.
"""


@dataclass(frozen=True, slots=True)
class ReportedSource:
    """A source of a run whose process reports its waits."""

    run: str
    """Address of the run."""
    next_block: NextBlock

    def __call__(self, index: int) -> pa.Table | None:
        """Return the index-th block, or None at the end."""
        report_waits(self.run, "source")
        return self.next_block(index)


_REPORTED = 512
"""Number of the newest blocks whose attempts a source reports to a restarted coordinator.

An attempt of an older block that no rollout worker has started is assigned again; its trajectory is
stored once.
"""


class Admitted:
    """Function that returns the blocks of the task source.

    It notes the ids of its attempts in a local file, so that a process that replaces a lost one can
    report them to a coordinator that was lost, too.

    Args:
        coordinator: handle of the coordinator.
        source: name of this source for the coordinator.
        limit: number of blocks after which the source ends.
        most: maximum number of attempts of a block.
        notes: path of the file of notes.
    """

    def __init__(
        self,
        coordinator: "Remote[CoordinatorActor]",
        source: str,
        limit: int,
        most: int,
        notes: Path,
    ) -> None:
        self._coordinator = coordinator
        self._source = source
        self._limit = limit
        self._most = most
        self._notes = notes
        self._taken: list[Sequence[str]] = []
        self._forgotten = 0

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for credit and return the index-th block of attempts, or None at the end."""
        if index >= self._limit:
            return None
        if index == 0 and self._notes.exists():
            self._taken, self._forgotten = [], 0
            for line in self._notes.read_text().splitlines():
                self._remember(json.loads(line))
            self._coordinator.call.adopt(self._source, self._taken)
        try:
            assignments = self._admitted(index)
            if not assignments:
                return None
        except BlockOverError:
            assignments = ()
        if index == len(self._taken):
            self._note([each.trajectory_id for each in assignments])
        return write_assignments(assignments)

    def _note(self, block: list[str]) -> None:
        self._remember(block)
        with self._notes.open("a") as file:  # one call to the system, which no kill cuts
            file.write(json.dumps(block) + "\n")

    def _remember(self, block: Sequence[str]) -> None:
        self._taken.append(block)
        for old in range(self._forgotten, len(self._taken) - _REPORTED):
            self._taken[old] = ()
            self._forgotten = old + 1

    def _admitted(self, index: int) -> tuple[Assignment, ...]:
        while True:
            try:
                return self._coordinator.call.admit(self._source, index, self._most)
            except UnknownClientError:  # the coordinator was lost
                self._coordinator.call.adopt(self._source, self._taken)


class Batches:
    """Function that returns the rows of the batch source: one batch each, as Arrow IPC.

    Args:
        coordinator: handle of the coordinator.
        rows: the rows of formed batches.
        first_step: step of the first block.
        steps: last step.
    """

    def __init__(
        self,
        coordinator: "Remote[CoordinatorActor]",
        rows: "BatchRows",
        first_step: int,
        steps: int,
    ) -> None:
        self._coordinator = coordinator
        self._rows = rows
        self._first_step = first_step
        self._steps = steps

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for the preceding step and return the batch of step `first_step + index`."""
        step = self._first_step + index
        rows = self._rows.ask(step) if step <= self._steps else self._rows
        try:
            batch = self._coordinator.call.next_batch(step)
        except BlockOverError:
            return batch_block(None)
        return None if batch is None else batch_block(batch, rows(batch))


class Versions:
    """Function that returns the rows of the evaluation source: one published version each.

    Args:
        coordinator: handle of the coordinator.
        due: versions to evaluate, in order.
    """

    def __init__(self, coordinator: "Remote[RunCoordinator]", due: Sequence[int]) -> None:
        self._coordinator = coordinator
        self._due = due

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for and return the index-th version to evaluate, or None if no more are due."""
        if index == len(self._due) or not self._coordinator.call.recorded(self._due[index]):
            return None
        return pa.table({"version": [self._due[index]]})


def batch_block(batch: Batch | None, rows: bytes = b"") -> pa.Table:
    """Return the block of a batch, whose rows are Arrow IPC; an empty one if there is none."""
    if batch is None:
        return pa.table({"step": pa.array([], pa.int64())})
    return pa.table(
        {
            "step": [batch.step],
            "policy_version": [batch.policy_version],
            "trained_version": [batch.trained_version],
            "rows": pa.array([rows], pa.large_binary()),
        }
    )


def write_assignments(assignments: Sequence[Assignment]) -> pa.Table:
    """Return a table of attempts, with what most of them share, the sampling settings, as JSON."""
    sampling = {each: json.dumps(asdict(each)) for each in {each.sampling for each in assignments}}
    return pa.table(
        {
            "trajectory_id": [each.trajectory_id for each in assignments],
            "group_id": [each.group_id for each in assignments],
            "attempt": [each.attempt for each in assignments],
            "env_seed": [each.env_seed for each in assignments],
            "split": [each.split for each in assignments],
            "task_id": [each.task.task_id for each in assignments],
            "domain": [each.task.domain for each in assignments],
            "payload": [each.task.payload for each in assignments],
            "sampling": [sampling[each.sampling] for each in assignments],
        }
    )


def read_assignments(block: pa.Table) -> list[Assignment]:
    """Read the attempts of a block that `write_assignments` returned."""
    sampling = {text: _sampling(text) for text in block["sampling"].unique().to_pylist()}
    return [
        Assignment(
            trajectory_id=row["trajectory_id"],
            group_id=row["group_id"],
            task=Task(row["task_id"], row["domain"], row["payload"]),
            attempt=row["attempt"],
            env_seed=row["env_seed"],
            sampling=sampling[row["sampling"]],
            split=Split(row["split"]),
        )
        for row in block.to_pylist()
    ]


def _sampling(text: str) -> Sampling:
    values: dict[str, Any] = json.loads(text)
    for name in ("stop_token_ids", "allowed_token_ids"):
        values[name] = tuple(values[name])
    return Sampling(**values)
