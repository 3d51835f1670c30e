"""Views of the page of one training step: its figures, its groups, its rows and their rewards.

The rows of a batch are joined with those trajectories only that can be in it: rows committed before
it, no older than its staleness says. So a reader passes over the files of the rest of the run.
"""

from rollart_flow.views.view import View

_STEP = {"step": int}
_BOUNDS = {
    "cut": "select max(seq) from batches where step = :step",
    "oldest": "select min(policy_version - staleness) from batches where step = :step",
}
_MEMBERS = (
    "batches as b join trajectories as t on b.trajectory_id = t.trajectory_id "
    "where b.step = :step and t.seq < :cut and t.policy_version_start >= :oldest"
)
_EPISODES = (
    "with episodes as (select b.group_id, t.episode_id, min(t.domain) as domain, "
    "min(t.task_id) as task_id, max(t.reward) as reward, max(b.staleness) as staleness, "
    f"max(b.lag) as lag from {_MEMBERS} group by b.group_id, t.episode_id) "
)
_BINS = 24

FIGURES = View(
    "step.figures",
    "Figures of the step",
    "select * from steps where step = :step",
    parameters=_STEP,
)
GROUPS = View(
    "step.groups",
    "Groups",
    f"{_EPISODES}"
    "select group_id, min(domain) as domain, min(task_id) as task_id, count(*) as episodes, "
    "avg(reward) as reward_mean, stddev(reward) as reward_std, min(reward) as reward_min, "
    "max(reward) as reward_max, max(reward) = min(reward) as zero_variance, "
    "max(staleness) as staleness, max(lag) as lag from episodes group by group_id",
    parameters=_STEP,
    lookups=_BOUNDS,
    order="group_id",
)
REWARDS = View(
    "step.rewards",
    "Rewards of the episodes",
    f"{_EPISODES}"
    "select cast(floor((reward - :low) / :width) as int) as bin, min(reward) as low, "
    "max(reward) as high, count(*) as episodes from episodes group by bin",
    parameters=_STEP,
    lookups={
        **_BOUNDS,
        "low": f"{_EPISODES} select min(reward) from episodes",
        "width": f"{_EPISODES} select case when max(reward) > min(reward) "
        f"then (max(reward) - min(reward)) / {_BINS} else 1.0 end from episodes",
    },
    order="bin",
    rows=_BINS + 2,
)
ROWS = View(
    "step.rows",
    "Rows of the batch",
    "select b.position, t.trajectory_id, b.group_id, t.domain, t.outcome, t.reward, "
    "array_mean(b.advantage) as advantage, array_length(b.advantage) as advantages, b.weight, "
    "b.staleness, b.lag, t.policy_version_start, t.policy_version_end "
    f"from {_MEMBERS} and t.reward >= :reward_from and t.reward <= :reward_to",
    parameters={**_STEP, "reward_from": float, "reward_to": float},
    defaults={"reward_from": -1e300, "reward_to": 1e300},
    lookups=_BOUNDS,
    order="position",
)
DRAWN = View(
    "step.drawn",
    "Rows that were drawn from stored runs",
    "select position, trajectory_id, group_id, array_mean(advantage) as advantage, weight, "
    "preferred, pair, implicit_reward, staleness, lag, source_run, source_seq, source_version, "
    "source_rescored from batches where step = :step and source_seq is not null",
    parameters=_STEP,
    order="position",
)
NEIGHBOURS = View(
    "step.neighbours",
    "Steps before and after",
    "select max(case when step < :step then step end) as previous, "
    "min(case when step > :step then step end) as next from steps",
    parameters=_STEP,
)

VIEWS = (FIGURES, GROUPS, REWARDS, ROWS, DRAWN, NEIGHBOURS)
