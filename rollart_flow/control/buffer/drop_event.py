"""Events for trajectories that leave the buffer without being trained on."""

from rollart_flow.types import Event, EventKind, Reason, Sample


def drop_event(
    kind: EventKind,
    sample: Sample,
    reason: Reason,
    version: int | None = None,
    by: str | None = None,
) -> Event:
    """Return the event for a committed trajectory that will not be trained on.

    Args:
        kind: DROP if the trajectory left alone, EVICT if its group left.
        sample: the trajectory.
        reason: reason for the removal.
        version: policy version for which the trajectory is too old.
        by: name of the filter that refused the trajectory.
    """
    detail: dict[str, object] = {
        "group_id": sample.group_id,
        "policy_version_start": sample.policy_version_start,
    }
    if by is not None:
        detail["filter"] = by
    return Event(
        kind,
        subject=sample.trajectory_id,
        reason=reason,
        domain=sample.domain,
        policy_version=version,
        detail=detail,
    )
