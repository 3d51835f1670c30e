"""Rows of the three streams' sources: attempts, batches and versions to evaluate.

A source runs as a task of Ray Data in a process of its own, so this module loads little
besides Arrow and Ray.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.types import Assignment, Sampling, Split, Task

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.coordinator import CoordinatorActor
    from rollart_flow.resources import Remote


class Admitted:
    """Function that returns the rows of the task source: one attempt each, at most `limit`."""

    def __init__(self, coordinator: "Remote[CoordinatorActor]", source: str, limit: int) -> None:
        self._coordinator = coordinator
        self._source = source
        self._limit = limit

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for credit and return the index-th attempt of this source, or None at its end."""
        if index >= self._limit:
            return None
        assignment = self._coordinator.call.admit(self._source, index)
        return None if assignment is None else write_assignment(assignment)


class Batches:
    """Function that returns the rows of the batch source: one batch each, as Arrow IPC."""

    def __init__(
        self,
        coordinator: "Remote[CoordinatorActor]",
        buffer: "Remote[BufferActor]",
        first_step: int,
    ) -> None:
        self._coordinator = coordinator
        self._buffer = buffer
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
                "rows": pa.array([self._buffer.call.rows(step)], pa.large_binary()),
            }
        )


class Versions:
    """Function that returns the rows of the evaluation source: one published version each."""

    def __init__(self, coordinator: "Remote[CoordinatorActor]") -> None:
        self._coordinator = coordinator

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for and return the index-th version to evaluate, or None if no more are due."""
        version = self._coordinator.call.next_evaluation(index)
        return None if version is None else pa.table({"version": [version]})


def write_assignment(assignment: Assignment) -> pa.Table:
    """Return a one-row table: trajectory id, domain, and the whole assignment as JSON."""
    return pa.table(
        {
            "trajectory_id": [assignment.trajectory_id],
            "domain": [assignment.task.domain],
            "assignment": [json.dumps(asdict(assignment))],
        }
    )


def read_assignment(block: pa.Table) -> Assignment:
    """Read an assignment from a block that `write_assignment` returned."""
    (text,) = block["assignment"].to_pylist()
    values = json.loads(text)
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
