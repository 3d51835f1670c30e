"""A trajectory with every field set, and calls of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rollart_flow.serverless.contract import encode_call
from rollart_flow.types import Outcome, Sampling, Split, Trajectory, Turn

NOW = datetime(2025, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)

TRAJECTORY = Trajectory(
    trajectory_id="t",
    episode_id="t",
    group_id="g",
    task_id="task",
    domain="arithmetic",
    attempt=1,
    outcome=Outcome.COMPLETED,
    task='{"question": "1+1 \\u00e9"}',
    sampling=Sampling(top_p=0.9, stop_token_ids=(3,), allowed_token_ids=(1, 2, 3)),
    split=Split.TRAIN,
    env_seed=7,
    env_version="v",
    created_at=NOW,
    finished_at=NOW + timedelta(seconds=2),
    reset_s=0.25,
    policy_version_start=4,
    policy_version_end=5,
    token_ids=(1, 2, 3),
    action_mask=(False, True, True),
    logprobs=(0.0, -0.5, -1.25),
    token_versions=(-1, 4, 5),
    kept_token_ids=((), (1, 2), (3,)),
    turns=(Turn(0, 3, "1+1 é", "2", 1.0, 0.1, 0.2, "CPU", "w", "stop"),),
    solved=True,
)


def attempt(number: int) -> Trajectory:
    """Another attempt, so another call."""
    return replace(TRAJECTORY, trajectory_id=f"t{number}", attempt=number)


def call(trajectory: Trajectory = TRAJECTORY, deadline_s: float = 60.0) -> bytes:
    """A call that is sent now."""
    return encode_call(trajectory, datetime.now(UTC) + timedelta(seconds=deadline_s))[1]
