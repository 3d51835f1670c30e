"""Statistics of a batch, in which an episode counts once, whatever the number of its rows."""

import math

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.episode_rows import as_episodes
from rollart_flow.operators.batch_columns import counted_by_bound, lag_of


def statistics(rows: pa.Table, step: int) -> dict[str, float | None]:
    """Compute the columns of `steps` that the batch alone determines; an episode counts once.

    The ages are those of rows that the bound counts; without any they are 0, and the lags null. The
    mean reward is NaN if no episode has one.
    """
    counted = as_episodes(counted_by_bound(rows))
    lag = lag_of(counted, step - 1)  # a batch from an older run has no such column
    ages = counted["staleness"]
    reward = pc.mean(as_episodes(rows)["reward"]).as_py()
    return {
        "reward_mean": math.nan if reward is None else reward,
        "staleness_max": pc.max(ages).as_py() or 0,
        "staleness_mean": pc.mean(ages).as_py() or 0.0,
        "lag_max": pc.max(lag).as_py(),
        "lag_mean": pc.mean(lag).as_py(),
        "trajectories": rows.num_rows,
    }


def rewards_by_domain(rows: pa.Table) -> dict[str, float]:
    """Compute the mean reward by domain, of the domains whose episodes have rewards."""
    episodes = as_episodes(rows).select(["domain", "reward"])
    means = episodes.group_by("domain").aggregate([("reward", "mean")])
    pairs = zip(means["domain"].to_pylist(), means["reward_mean"].to_pylist(), strict=True)
    return {domain: reward for domain, reward in pairs if reward is not None}
