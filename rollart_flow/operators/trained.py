"""What the train operator returns of a step, as a block of one row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollart_flow.rows import from_ipc, to_ipc


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of the train operator for one step."""

    row: Mapping[str, Any]
    """The step's row of `steps`."""
    rewards: Mapping[str, float]
    """Mean reward by domain."""
    committed: int
    """Number of trajectories that the run has committed so far."""


def trained_block(steps: pa.Table, rewards: Mapping[str, float], committed: int) -> pa.Table:
    """Build the block of a step; `steps` has its row."""
    row = {"steps": [to_ipc(steps)], "rewards": [json.dumps(rewards)], "committed": [committed]}
    return pa.table(row)


def read_trained(block: pa.Table) -> Trained:
    """Read the result from a block that the train operator returned."""
    (said,) = block.to_pylist()
    (row,) = from_ipc(said["steps"]).to_pylist()
    return Trained(row, json.loads(said["rewards"]), said["committed"])
