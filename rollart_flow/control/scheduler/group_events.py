"""Events that tell of a group and its attempts: opened, admitted, retried, aborted, given up."""

from rollart_flow.control.scheduler.groups import Attempt, Group
from rollart_flow.types import Event, EventKind, Reason, Sample


def prepared(group: Group) -> Event:
    """Return the event of a group that was opened ahead, with all that a restart needs of it."""
    return Event(
        EventKind.PREPARE, group.group_id, domain=group.task.domain, detail=_of_restart(group)
    )


def admitted(group: Group, version: int) -> Event:
    """Return the event of a group's admission, with all that a restart needs of it.

    Args:
        group: the group.
        version: policy version that the engines serve.
    """
    return Event(
        EventKind.ADMIT,
        subject=group.group_id,
        domain=group.task.domain,
        policy_version=version,
        detail=_of_restart(group),
    )


def _of_restart(group: Group) -> dict[str, object]:
    task = group.task
    return {"cursor": group.position, "task_id": task.task_id, "payload": task.payload}


def retried(attempt: Attempt, replaced: Sample) -> Event:
    """Return the event of an attempt that takes the place of one that failed."""
    detail = {
        "replaces": replaced.trajectory_id,
        "outcome": replaced.outcome,
        "error": replaced.error,
    }
    domain = attempt.assignment.task.domain
    return Event(EventKind.RETRY, subject=attempt.trajectory_id, domain=domain, detail=detail)


def aborted(sample: Sample, reason: Reason, version: int) -> Event:
    """Return the event of a cancelled attempt, of which this trajectory was committed."""
    return Event(
        EventKind.ABORT,
        subject=sample.trajectory_id,
        reason=reason,
        domain=sample.domain,
        policy_version=version,
        detail={"outcome": sample.outcome, "policy_version_start": sample.policy_version_start},
    )


def abandoned(group: Group, reason: Reason, version: int) -> Event:
    """Return the event of a group that was given up."""
    return Event(
        EventKind.ABANDON,
        subject=group.group_id,
        reason=reason,
        domain=group.task.domain,
        policy_version=version,
        detail={
            "task_id": group.task.task_id,
            "attempts": len(group.used),
            "members": len(group.members),
        },
    )
