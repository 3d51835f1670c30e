"""A schedule: `sync_plus` under another name."""

from dataclasses import replace

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import sync_plus
from rollart_tiny import used


def tiny() -> Schedule:
    """Alternate rollout and training."""
    used("schedule")
    return replace(sync_plus(), name="tiny")
