"""Small makers of rows for tests of the buffer."""

from datetime import UTC, datetime

import pyarrow as pa

from rollart_flow.operators.ipc import encode
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.types import Outcome, Sampling, Split, Trajectory, Turn

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def trajectory(
    group_id: str,
    attempt: int,
    *,
    start: int = 0,
    outcome: Outcome = Outcome.COMPLETED,
    reward: float | None = 1.0,
    domain: str = "coin",
    split: Split = Split.TRAIN,
) -> Trajectory:
    """One turn of five tokens, two of them generated."""
    name = f"{group_id}-{attempt:02d}"
    return Trajectory(
        trajectory_id=name,
        episode_id=name,
        group_id=group_id,
        task_id="toss",
        domain=domain,
        attempt=attempt,
        outcome=outcome,
        task="{}",
        sampling=Sampling(),
        split=split,
        env_seed=1,
        env_version="coin/1",
        created_at=NOW,
        finished_at=NOW,
        reset_s=0.0,
        policy_version_start=start,
        policy_version_end=start,
        token_ids=(1, 2, 3, 4, attempt),
        action_mask=(False, False, False, True, True),
        logprobs=(0.0, 0.0, 0.0, -0.5, -0.25),
        token_versions=(-1, -1, -1, start, start),
        turns=(Turn(0, 5, "coin", "heads", reward or 0.0, 0.1, 0.1, "CPU", "engine-0", "stop"),),
        reward=reward,
        scored_at=None if reward is None else NOW,
    )


def group(group_id: str, size: int = 2, *, start: int = 0) -> list[Trajectory]:
    """All members of a group."""
    return [trajectory(group_id, attempt, start=start) for attempt in range(size)]


def table(*trajectories: Trajectory) -> pa.Table:
    """Their rows."""
    return trajectories_table(trajectories)


def sent(*trajectories: Trajectory) -> bytes:
    """Their rows as they are sent to the buffer."""
    return encode(table(*trajectories))


def manifest(step: int, names: list[str]) -> pa.Table:
    """Rows of `batches` of a step."""
    rows = [
        {
            "step": step,
            "position": position,
            "trajectory_id": name,
            "group_id": name[:-3],
            "advantage": [1.0],
            "weight": 1.0,
            "staleness": 0,
            "policy_version": 0,
            "trained_version": step - 1,
        }
        for position, name in enumerate(names)
    ]
    return to_table("batches", rows)
