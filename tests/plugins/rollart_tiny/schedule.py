"""A schedule: `sync_plus` under another name."""

from dataclasses import replace

from rollart_flow.control.schedule.schedules import Schedule, sync_plus
from rollart_tiny import used


def tiny() -> Schedule:
    """Alternate rollout and training."""
    used("schedule")
    return replace(sync_plus(), name="tiny")
