"""Views of the page of one group: the attempts at its task, their rewards and their texts."""

from rollart_flow.views.view import View

_GROUP = {"group": str}
_ATTEMPTS = "trajectories where group_id = :group and coalesce(branch, 0) = 0"

FIGURES = View(
    "group.figures",
    "Figures of the group",
    "select min(domain) as domain, min(task_id) as task_id, min(split) as split, "
    "count(*) as attempts, count(reward) as scored, avg(reward) as reward_mean, "
    "stddev(reward) as reward_std, min(reward) as reward_min, max(reward) as reward_max, "
    "count(reward) > 1 and max(reward) = min(reward) as zero_variance, "
    f"min(policy_version_start) as oldest_version from {_ATTEMPTS}",
    parameters=_GROUP,
)
ATTEMPTS = View(
    "group.attempts",
    "Attempts",
    "select t.trajectory_id, t.attempt, t.outcome, t.reason, t.reward, t.solved, b.step, "
    "array_mean(b.advantage) as advantage, b.weight, b.staleness, b.lag, "
    "t.policy_version_start, t.policy_version_end, array_length(t.turns) as turns, "
    "t.created_at, t.finished_at, t.error from trajectories as t "
    "left join (select trajectory_id, step, advantage, weight, staleness, lag from batches "
    "where group_id = :group) as b on t.trajectory_id = b.trajectory_id "
    "where t.group_id = :group and coalesce(t.branch, 0) = 0",
    parameters=_GROUP,
    order="attempt, step",
)
TEXTS = View(
    "group.texts",
    "Texts of the attempts",
    "with said as (select trajectory_id, attempt, unnest(turns) as turn from trajectories "
    "where group_id = :group and coalesce(branch, 0) = 0) "
    "select trajectory_id, attempt, row_number() over (partition by trajectory_id) - 1 as number, "
    "turn.observation as observation, turn.action as action, turn.reward as reward from said",
    parameters=_GROUP,
    order="attempt, trajectory_id, number",
    rows=200,
)
EVENTS = View(
    "group.events",
    "Events of the group",
    "select at, kind, subject, reason, step, detail from events where subject = :group",
    parameters=_GROUP,
    order="at, seq",
)
NEIGHBOURS = View(
    "group.neighbours",
    "Groups before and after",
    "select max(case when group_id < :group then group_id end) as previous, "
    "min(case when group_id > :group then group_id end) as next from trajectories",
    parameters=_GROUP,
)

VIEWS = (FIGURES, ATTEMPTS, TEXTS, EVENTS, NEIGHBOURS)
