"""The pages of a run, each with the views that it shows."""

from collections.abc import Mapping

from rollart_flow.views import overview, runs
from rollart_flow.views.view import View

PAGES: Mapping[str, tuple[View, ...]] = {
    "overview": overview.VIEWS,
    "moments": (runs.MOMENTS,),
    "found": (runs.FOUND,),
}
"""The views of each page by its name."""
