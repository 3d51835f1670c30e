"""Small makers of samples and changes for tests."""

from rollart_flow.control.protocols import Change
from rollart_flow.types import Assignment, Batch, Outcome, Sample


def sample(
    group_id: str,
    attempt: int,
    *,
    start: int | None = 0,
    outcome: Outcome = Outcome.COMPLETED,
    scored: bool = True,
    error: str | None = None,
    domain: str = "a",
) -> Sample:
    """A committed trajectory; completed and scored unless said otherwise."""
    return Sample(
        trajectory_id=f"{group_id}-{attempt:02d}",
        group_id=group_id,
        domain=domain,
        attempt=attempt,
        outcome=outcome,
        policy_version_start=start,
        policy_version_end=start,
        scored=scored,
        tokens=5,
        error=error,
    )


def committed(
    assignment: Assignment,
    *,
    start: int | None = 0,
    outcome: Outcome = Outcome.COMPLETED,
    error: str | None = None,
) -> Change:
    """What the buffer reports when an attempt's trajectory is committed."""
    return Change(
        committed=sample(
            assignment.group_id,
            assignment.attempt,
            start=start,
            outcome=outcome,
            error=error,
            domain=assignment.task.domain,
        )
    )


def batch_of(step: int, *groups: str, size: int = 2, served: int = 0) -> Batch:
    """A batch of whole groups, each with attempts from 0."""
    ids = [(f"{group}-{i:02d}", group) for group in groups for i in range(size)]
    return Batch(
        step=step,
        policy_version=served,
        trained_version=step - 1,
        trajectory_ids=tuple(trajectory for trajectory, _ in ids),
        group_ids=tuple(group for _, group in ids),
        staleness=tuple(0 for _ in ids),
    )
