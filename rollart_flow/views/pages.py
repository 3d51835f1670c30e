"""The pages of a run, each with the views that it shows."""

from collections.abc import Mapping

from rollart_flow.views import events, group, overview, runs, step, trajectory
from rollart_flow.views.view import View

PAGES: Mapping[str, tuple[View, ...]] = {
    "overview": overview.VIEWS,
    "step": step.VIEWS,
    "group": group.VIEWS,
    "trajectory": trajectory.VIEWS,
    "events": events.VIEWS,
    "moments": (runs.MOMENTS,),
    "found": (runs.FOUND,),
}
"""The views of each page by its name."""
