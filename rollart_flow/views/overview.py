"""Views of the page of one run: its curves, and what became of its attempts.

A curve has some hundred points: each is several steps of a long run, with the lowest and
the highest value beside the mean where a single step can matter.
"""

from collections.abc import Mapping
from typing import Any

from rollart_flow.views.view import View

_POINTS = 400
_RECENT = 20
"""Steps that the utilization of pools is measured over."""

_IN_RANGE = "step between :first and :last"
_STEPS: Mapping[str, Any] = {
    "parameters": {"first": int, "last": int},
    "defaults": {"first": 0, "last": 2**31 - 1},
    "lookups": {"every": f"select 1 + (max(step) - min(step)) // {_POINTS} from steps "
                         f"where {_IN_RANGE}"},
    "order": "step",
    "rows": 2 * _POINTS,
}  # fmt: skip


def _curve(name: str, title: str, columns: str) -> View:
    """Return a view with a row for each point of curves over the steps."""
    sql = (
        f"select min(step) as step, {columns} from steps where {_IN_RANGE} group by step // :every"
    )
    return View(f"overview.{name}", title, sql, **_STEPS)


SUCCESS = View(
    "overview.success",
    "Success of evaluations",
    "select max(step) as step, domain, metric, avg(value) as value, min(low) as low, "
    "max(high) as high, sum(n) as episodes from evaluations "
    "where (metric like 'success%' or metric like 'pass@%') and step between :first and :last "
    "group by domain, metric, step // :every",
    parameters={"first": int, "last": int},
    defaults={"first": 0, "last": 2**31 - 1},
    lookups={
        "every": "select 1 + (max(step) - min(step)) // 100 from evaluations "
        "where step between :first and :last"
    },
    order="domain, metric, step",
    rows=4000,
)
REWARD = _curve(
    "reward",
    "Mean reward of the batch",
    "avg(reward_mean) as reward, min(reward_mean) as lowest, max(reward_mean) as highest",
)
LOSS = _curve(
    "loss", "Loss", "avg(loss) as loss, min(loss) as lowest, max(loss) as highest"
)  # fmt: skip
GRADIENT = _curve(
    "gradient",
    "Gradient norm before clipping",
    "avg(grad_norm) as grad_norm, min(grad_norm) as lowest, max(grad_norm) as highest",
)
POLICY = _curve(
    "policy",
    "Entropy, divergence, clipping",
    "avg(entropy) as entropy, avg(kl) as kl, avg(mismatch_kl) as mismatch_kl, "
    "avg(clip_fraction) as clip_fraction",
)
RATIO = _curve(
    "ratio",
    "Importance ratios",
    "avg(ratio_mean) as ratio_mean, max(ratio_max) as ratio_max, avg(ess) as ess",
)
AGES = _curve(
    "ages",
    "Staleness and lag of the batch [versions]",
    "max(staleness_max) as staleness_max, avg(staleness_mean) as staleness_mean, "
    "max(lag_max) as lag_max, avg(lag_mean) as lag_mean",
)
PHASES = _curve(
    "phases",
    "Seconds of a step by phase",
    "avg(wait_s) as wait, avg(suspend_s) as suspend, avg(update_s) as update, "
    "avg(resume_s) as resume, avg(train_s) as train, avg(publish_s) as publish, "
    "avg(step_s) as whole",
)
WASTE = View(
    "overview.waste",
    "Attempts by outcome and reason",
    "select outcome, reason, count(*) as attempts, count(*) * 1.0 / :all as share, "
    "sum(finished_at - created_at) as seconds from trajectories "
    "where split = 'train' and coalesce(branch, 0) = 0 group by outcome, reason",
    lookups={
        "all": "select count(*) from trajectories where split = 'train' and coalesce(branch, 0) = 0"
    },
    order="attempts desc, outcome, reason",
)
DROPS = View(
    "overview.drops",
    "What left the buffer untrained, or was aborted",
    "select kind, reason, domain, count(*) as events, max(step) as last_step from events "
    "where kind in ('evict', 'drop', 'abort', 'abandon') group by kind, reason, domain",
    order="events desc, kind, reason, domain",
)
DOMAINS = View(
    "overview.domains",
    "Domains",
    "select domain, split, count(*) as attempts, avg(reward) as reward, "
    "avg(solved::int) as solved, avg(finished_at - created_at) as seconds from trajectories "
    "where coalesce(branch, 0) = 0 group by domain, split",
    order="split desc, domain",
)
POOLS = View(
    "overview.pools",
    "Pools",
    "select role, granted, domain, count(distinct worker) as workers, sum(cpus) as cpus, "
    "sum(gpus) as gpus, sum(fallback::int) as fallbacks from bindings "
    "group by role, granted, domain",
    order="role, granted, domain",
)
BUSY = View(
    "overview.busy",
    f"Where the time of the last {_RECENT} steps went",
    "select count(*) as steps, sum(train_s) / sum(step_s) as training, "
    "sum(wait_s) / sum(step_s) as training_waits, "
    "sum(suspend_s + update_s + resume_s) / sum(step_s) as rollout_suspended, "
    "sum(publish_s) / sum(step_s) as publishing, sum(tokens) / sum(step_s) as tokens_per_s "
    "from steps where step > :after",
    lookups={"after": f"select max(step) - {_RECENT} from steps"},
)
ENGINES = View(
    "overview.engines",
    f"Engine workers, since {_RECENT} steps ago",
    "with acted as (select unnest(turns) as turn from trajectories where seq > :since) "
    "select turn.hardware as hardware, turn.worker as worker, count(*) as turns, "
    "sum(turn.generate_s) as generate_s, sum(turn.generate_s) / :seconds as requests_at_once, "
    "sum(turn.step_s) as environment_s from acted group by turn.hardware, turn.worker",
    lookups={
        "since": "select coalesce(max(seq), 0) from steps "
                 f"where step <= (select max(step) - {_RECENT} from steps)",
        "seconds": "select sum(step_s) from steps where seq > :since",
    },
    order="hardware, worker",
)  # fmt: skip
LATEST = View(
    "overview.latest",
    "Steps",
    "select step, reward_mean, loss, grad_norm, staleness_max, lag_max, zero_variance_groups, "
    "trajectories, tokens, step_s, finished_at, skipped from steps",
    order="step desc",
)

VIEWS = (
    SUCCESS, REWARD, LOSS, GRADIENT, POLICY, RATIO, AGES, PHASES, WASTE, DROPS, DOMAINS, POOLS,
    BUSY, ENGINES, LATEST,
)  # fmt: skip
