"""Blocks of the three streams' sources: attempts, batches and versions to evaluate.

A source runs as a task of Ray Data in a process of its own, so this module loads little
besides Arrow and Ray.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollart_flow.errors import UnknownClientError
from rollart_flow.resources.blocking import report_waits
from rollart_flow.types import Assignment, Sampling, Split, Task

if TYPE_CHECKING:
    from rollart_flow.operators.batch_rows import BatchRows
    from rollart_flow.operators.coordinator import CoordinatorActor
    from rollart_flow.resources import Remote


NextBlock = Callable[[int], pa.Table | None]
"""Function from an index to that block of a stream, or to None at the end of the stream.

A repeated call with the same index returns the same block.
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


class Admitted:
    """Function that returns the blocks of the task source.

    Args:
        coordinator: handle of the coordinator.
        source: name of this source for the coordinator.
        limit: number of attempts after which the source ends.
        most: maximum number of attempts of a block.
    """

    def __init__(
        self, coordinator: "Remote[CoordinatorActor]", source: str, limit: int, most: int
    ) -> None:
        self._coordinator = coordinator
        self._source = source
        self._left = limit
        self._most = most
        self._taken: list[str] = []

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for credit and return the index-th block of attempts, or None at the end."""
        if self._left <= 0:
            return None
        while True:
            try:
                assignments = self._coordinator.call.admit(self._source, index, self._most)
                break
            except UnknownClientError:
                self._coordinator.call.adopt(self._source, self._taken)
        self._left -= len(assignments)
        self._taken += [each.trajectory_id for each in assignments]
        return write_assignments(assignments) if assignments else None


class Batches:
    """Function that returns the rows of the batch source: one batch each, as Arrow IPC."""

    def __init__(
        self,
        coordinator: "Remote[CoordinatorActor]",
        rows: "BatchRows",
        first_step: int,
    ) -> None:
        self._coordinator = coordinator
        self._rows = rows
        self._first_step = first_step

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for the preceding step and return the batch of step `first_step + index`."""
        step = self._first_step + index
        batch = self._coordinator.call.next_batch(step)
        if batch is None:
            return None
        return pa.table(
            {
                "step": [batch.step],
                "policy_version": [batch.policy_version],
                "trained_version": [batch.trained_version],
                "rows": pa.array([self._rows(batch)], pa.large_binary()),
            }
        )


class Versions:
    """Function that returns the rows of the evaluation source: one published version each."""

    def __init__(self, coordinator: "Remote[CoordinatorActor]") -> None:
        self._coordinator = coordinator
        self._versions: list[int] = []

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for and return the index-th version to evaluate, or None if no more are due."""
        if index == len(self._versions):
            after = self._versions[-1] if self._versions else None
            version = self._coordinator.call.next_evaluation(after)
            if version is None:
                return None
            self._versions.append(version)
        return pa.table({"version": [self._versions[index]]})


def write_assignments(assignments: Sequence[Assignment]) -> pa.Table:
    """Return a table of attempts: trajectory id, domain, and the whole assignment as JSON."""
    return pa.table(
        {
            "trajectory_id": [each.trajectory_id for each in assignments],
            "domain": [each.task.domain for each in assignments],
            "assignment": [json.dumps(asdict(each)) for each in assignments],
        }
    )


def read_assignments(block: pa.Table) -> list[Assignment]:
    """Read the attempts of a block that `write_assignments` returned."""
    return [_assignment(json.loads(text)) for text in block["assignment"].to_pylist()]


def _assignment(values: dict[str, Any]) -> Assignment:
    sampling = values["sampling"]
    for name in ("stop_token_ids", "allowed_token_ids"):
        sampling[name] = tuple(sampling[name])
    return Assignment(
        **{
            **values,
            "task": Task(**values["task"]),
            "sampling": Sampling(**sampling),
            "split": Split(values["split"]),
        }
    )
