"""Views of the page of one run: its curves, and what became of its attempts."""

from rollart_flow.views.view import View

_POINTS = 500
_EVERY = f"select 1 + max(step) // {_POINTS} from steps"
"""Steps of one point: a curve has at most `_POINTS` and one points, whatever the run's length."""

STEPS = View(
    "overview.steps",
    "Steps",
    "select min(step) as step, avg(reward_mean) as reward, avg(loss) as loss, "
    "max(staleness_max) as staleness_max, avg(staleness_mean) as staleness_mean, "
    "max(lag_max) as lag_max, avg(lag_mean) as lag_mean "
    "from steps group by step // :every",
    lookups={"every": _EVERY},
    order="step",
    rows=2 * _POINTS,
)

VIEWS = (STEPS,)
