"""Rows of the three streams' sources: attempts, batches and versions to evaluate.

A source runs as a task of Ray Data in a process of its own, so this module loads only Arrow.
"""

from typing import Any

import pyarrow as pa
import ray

from rollart_flow.operators.assignments import write_assignment
from rollart_flow.types import Assignment, Batch


class Admitted:
    """Function that returns the rows of the task source: one attempt each, at most `limit`."""

    def __init__(self, coordinator: Any, source: str, limit: int) -> None:
        self._coordinator = coordinator
        self._source = source
        self._limit = limit

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for credit and return the index-th attempt of this source, or None at its end."""
        if index >= self._limit:
            return None
        assignment: Assignment | None = ray.get(self._coordinator.admit.remote(self._source, index))
        return None if assignment is None else write_assignment(assignment)


class Batches:
    """Function that returns the rows of the batch source: one batch each, as Arrow IPC."""

    def __init__(self, coordinator: Any, buffer: Any, first_step: int) -> None:
        self._coordinator = coordinator
        self._buffer = buffer
        self._first_step = first_step

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for the preceding step and return the batch of step `first_step + index`."""
        step = self._first_step + index
        batch: Batch | None = ray.get(self._coordinator.next_batch.remote(step))
        if batch is None:
            return None
        return pa.table(
            {
                "step": [batch.step],
                "policy_version": [batch.policy_version],
                "trained_version": [batch.trained_version],
                "rows": pa.array([ray.get(self._buffer.rows.remote(step))], pa.large_binary()),
            }
        )


class Versions:
    """Function that returns the rows of the evaluation source: one published version each."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def __call__(self, index: int) -> pa.Table | None:
        """Wait for and return the index-th version to evaluate, or None if no more are due."""
        version: int | None = ray.get(self._coordinator.next_evaluation.remote(index))
        return None if version is None else pa.table({"version": [version]})
