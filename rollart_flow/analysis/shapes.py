"""The shape of each scored trajectory of a run: its reward and its text compared with the others'.

Invariant: one row for each scored trajectory of the training split, with every column below; a
figure that cannot be computed is null. This module does not judge; `analysis.redteam` does.

    trajectory_id, task_id, domain, outcome, policy_version, reward
    step            first step that trained on it; null if none did
    spread          largest minus smallest reward of the domain
    usual_reward    mean reward of the domain
    excess          reward minus the mean of the rest of its group (of the domain if it is alone),
                    as a fraction of `spread`
    tokens          generated tokens; usual_tokens: median of the domain
    cut             whether an action reached its token limit; usual_cut: fraction in the domain
    turns           number of actions; same_action: fraction of the most frequent one
    longest         its longest action, blanks collapsed; alike: number of tasks with that text
    repeated        fraction of the word 4-grams of `longest` that occur earlier in it; null if
                    there are under 8
    suspicions      number of things that the environment noticed; null if it does not say
    outcome_part, process_part      of a composed reward
    best_process    mean process part of the domain's trajectories with the best outcome
    rise            mean reward of the domain minus that of the version before
    evaluated       change of `success` at the first evaluation from its version on
"""

from typing import TYPE_CHECKING

import polars as pl

from rollart_flow.rewards.composition import OUTCOME, PROCESS
from rollart_flow.types import TRAINABLE, FinishReason, Split

if TYPE_CHECKING:
    from rollart_flow.store import Snapshot

_WORDS, _FEWEST = 4, 8


def shapes(tables: "Snapshot") -> pl.LazyFrame:
    """Return the shapes of a run's scored trajectories, one row each."""
    scored = tables.trajectories.filter(
        pl.col("split") == Split.TRAIN,
        pl.col("outcome").is_in([str(outcome) for outcome in TRAINABLE]),
        pl.col("reward").is_not_null(),
    )
    own = scored.select(
        "trajectory_id", "group_id", "task_id", "domain", "outcome", "reward",
        pl.col("policy_version_start").alias("policy_version"),
        pl.col("suspicions").list.len(),
        *_of_tokens(), *_of_parts(),
        pl.col("turns").list.eval(pl.element().struct.field("action")).alias("actions"),
    )  # fmt: skip
    steps = tables.batches.group_by("trajectory_id").agg(pl.col("step").min())
    return (
        own.with_columns(*_of_rewards(), *_of_actions())
        .with_columns(_repeated().alias("repeated"))
        .with_columns(_among_the_others())
        .join(steps, on="trajectory_id", how="left")
        .join(_trends(own, tables.evaluations), on=["domain", "policy_version"], how="left")
        .drop("actions", "group_id")
    )


def _of_tokens() -> list[pl.Expr]:
    cut = pl.element().struct.field("finish_reason") == str(FinishReason.LENGTH)
    ends = pl.col("turns").list.eval(cut)
    return [
        pl.col("action_mask").list.sum().alias("tokens"),
        ends.list.any().fill_null(False).alias("cut"),
        pl.col("turns").list.len().alias("turns"),
    ]


def _of_parts() -> list[pl.Expr]:
    name = pl.element().struct.field("name")
    parts = pl.col("reward_parts").list
    values = ((p, pl.element().filter(name == p).struct.field("value")) for p in (OUTCOME, PROCESS))
    return [parts.eval(value).list.first().alias(f"{part}_part") for part, value in values]


def _of_rewards() -> list[pl.Expr]:
    reward = pl.col("reward")
    others = pl.len().over("group_id") - 1
    rest = (reward.sum().over("group_id") - reward) / others
    usual = reward.mean().over("domain")
    spread = (reward.max() - reward.min()).over("domain")
    excess = reward - pl.when(others > 0).then(rest).otherwise(usual)
    return [
        usual.alias("usual_reward"),
        spread.alias("spread"),
        pl.when(spread > 0).then(excess / spread).alias("excess"),
    ]


def _of_actions() -> list[pl.Expr]:
    actions = pl.col("actions")
    place = actions.list.eval(pl.element().str.len_chars()).list.arg_max()
    longest = actions.list.get(place, null_on_oob=True)
    most = actions.list.eval(pl.element().unique_counts().max()).list.first()
    return [
        longest.str.extract_all(r"\S+").list.join(" ").alias("longest"),
        (most / actions.list.len()).alias("same_action"),
    ]


def _repeated() -> pl.Expr:
    word = pl.element()
    following = [word.shift(-ahead) for ahead in range(_WORDS)]
    grams = (
        pl.col("longest")
        .str.split(" ")
        .list.eval(pl.concat_str(following, separator=" ", ignore_nulls=False).drop_nulls())
    )
    total = grams.list.len()
    return pl.when(total >= _FEWEST).then(1 - grams.list.n_unique() / total)


def _among_the_others() -> list[pl.Expr]:
    best = pl.col("outcome_part") == pl.col("outcome_part").max()
    return [
        pl.col("process_part").filter(best).mean().over("domain").alias("best_process"),
        pl.col("tokens").median().over("domain").alias("usual_tokens"),
        pl.col("cut").mean().over("domain").alias("usual_cut"),
        pl.col("task_id").n_unique().over("domain", "longest").alias("alike"),
    ]


def _trends(own: pl.LazyFrame, evaluations: pl.LazyFrame) -> pl.LazyFrame:
    """The rise of the reward and the change at the next evaluation, by domain and version."""
    version = pl.col("policy_version")
    follows = version.diff().over("domain", order_by="policy_version") == 1
    rise = pl.col("reward").diff().over("domain", order_by="policy_version")
    rewards = (
        own.filter(version.is_not_null())
        .group_by("domain", "policy_version")
        .agg(pl.col("reward").mean())
        .select("domain", "policy_version", pl.when(follows).then(rise).alias("rise"))
        .sort("policy_version")
    )
    change = pl.col("value").diff().over("domain", order_by="policy_version")
    successes = (
        evaluations.filter(pl.col("metric") == "success")
        .unique(["domain", "policy_version"])
        .select("domain", "policy_version", change.alias("evaluated"))
        .sort("policy_version")
    )
    return rewards.join_asof(
        successes,
        on="policy_version",
        by="domain",
        strategy="forward",
        check_sortedness=False,  # both are sorted above; polars cannot see it by domain
    )
