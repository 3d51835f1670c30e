"""Conversion of assignments to and from one-row blocks, as the task source yields them."""

import json
from dataclasses import asdict

import pyarrow as pa

from rollart_flow.types import Assignment, Sampling, Split, Task


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
