"""Margins and accuracies of a policy's preferences, from the rows of `batches`.

The implicit reward of a trajectory is beta log(pi_old / pi_ref), at the weights that a step starts
from (2305.18290, section 4). Invariant: a figure that a step does not define is null.
"""

import polars as pl

COLUMNS = ("preferred", "pair", "implicit_reward")
"""Columns of `batches` that are read."""


def preferences_by_step(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return `step`, `margin` and `accuracy` of the steps that learned from preferences.

    The margin is the mean implicit reward of the preferred trajectories less that of the rejected
    ones, which is the mean over pairs where there are pairs. The accuracy is the fraction of pairs
    whose preferred trajectory has the higher implicit reward; null without pairs.

    Args:
        rows: rows of `batches`, with `step` and `COLUMNS`.
    """
    reward, preferred = pl.col("implicit_reward"), pl.col("preferred")
    told = rows.filter(reward.is_not_null(), preferred.is_not_null())
    better, worse = reward.filter(preferred), reward.filter(~preferred)
    margin = (better.mean().cast(pl.Float64) - worse.mean()).alias("margin")
    paired = told.filter(pl.col("pair").is_not_null())
    pairs = paired.group_by("step", "pair").agg((better.sum() > worse.sum()).alias("right"))
    right = pairs.group_by("step").agg(pl.col("right").mean().alias("accuracy"))
    found = told.group_by("step").agg(margin).join(right, on="step", how="left")
    return found.sort("step")
