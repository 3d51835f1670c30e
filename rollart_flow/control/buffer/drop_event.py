"""What is recorded of a trajectory that leaves the buffer without being trained on."""

from rollart_flow.types import Event, EventKind, Reason, Sample


def drop_event(
    kind: EventKind,
    sample: Sample,
    reason: Reason,
    version: int | None = None,
    by: str | None = None,
) -> Event:
    """One event for one committed trajectory that will not be trained on.

    Args:
        kind: DROP where it left alone, EVICT where its group left.
        sample: the trajectory.
        reason: why.
        version: policy version that it is too old for.
        by: name of the filter that refused it.
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
