"""Views of the list of runs, and of the moments of one run."""

from rollart_flow.views.view import View

FIGURES = View(
    "runs.figures",
    "Runs",
    "select max(step) as steps, sum(trajectories) as trained, sum(tokens) as tokens, "
    "max(finished_at) as last_step from steps",
)

MOMENTS = View(
    "runs.moments",
    "Moments",
    "select max(step) as step, max(seq) as seq, max(finished_at) as at "
    "from steps group by step // :every",
    lookups={"every": "select 1 + max(step) // 1000 from steps"},
    order="step",
    rows=2000,
)
"""The seq of steps, for time travel."""

FOUND = View(
    "runs.found",
    "Found",
    "select 'trajectory' as kind, min(trajectory_id) as id from trajectories "
    "where left(trajectory_id, length(:text)) = :text group by trajectory_id "
    "union all select 'group' as kind, min(group_id) as id from trajectories "
    "where left(group_id, length(:text)) = :text group by group_id",
    parameters={"text": str},
    order="kind, id",
    rows=8,
)
"""Groups and trajectories whose id begins with a text."""

VIEWS = (FIGURES, MOMENTS)
