"""Trajectories for the tests of rewards."""

import json
from datetime import UTC, datetime

from rollart_flow.types import Outcome, Sampling, Split, Trajectory, Turn

NOW = datetime(2025, 1, 1, tzinfo=UTC)


def answered(*actions: str, **payload: object) -> Trajectory:
    """A completed trajectory with these actions, at a task of this payload."""
    return Trajectory(
        trajectory_id="t",
        episode_id="t",
        group_id="g",
        task_id="math/1",
        domain="math",
        attempt=0,
        outcome=Outcome.COMPLETED,
        task=json.dumps(payload),
        sampling=Sampling(),
        split=Split.TRAIN,
        env_seed=0,
        env_version="v",
        created_at=NOW,
        finished_at=NOW,
        reset_s=0.0,
        turns=tuple(
            Turn(0, 2, "o", action, 0.0, 0.1, 0.1, "CPU", "w", "stop") for action in actions
        ),
    )
