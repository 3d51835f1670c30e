"""Rescorings: rewards that a run's trajectories got later, as rows of its table `verdicts`.

A rescoring is a name, the `source` of its verdicts. It has a row of kind reward and key `reward`
for each attempt that it judged, whose value is null, with the error as its message, where it found
no reward; and a row for each named part. Invariant: the rows of `trajectories` stay as they are.
"""

from collections.abc import Mapping

import polars as pl

from rollart_flow.errors import SettingsError
from rollart_flow.store.snapshot import Tables
from rollart_flow.types.verdicts import VerdictKind, VerdictSource

REWARD, SUCCESS = "reward", "success"
"""Keys of the rows with the reward of a rescoring, and with 1 for a solved task and 0 otherwise."""
_OF_A_PART = "part:"
"""Beginning of the key of a part that has one of these names."""


def key_of_part(name: str) -> str:
    """Return the key in `verdicts` of a named part of a reward that a rescoring found."""
    taken = name in (REWARD, SUCCESS) or name.startswith(_OF_A_PART)
    return _OF_A_PART + name if taken else name


def rescorings(run: Tables) -> Mapping[str, int]:
    """Return the number of attempts that each rescoring of a run judged, by name in their order."""
    own = [str(source) for source in VerdictSource]
    found = (
        run.verdicts.filter(~pl.col("source").is_in(own))
        .group_by("source")
        .agg(pl.col("trajectory_id").n_unique().alias("attempts"), pl.col("seq").min())
        .sort("seq")
        .select("source", "attempts")
        .collect()
    )
    return dict(found.iter_rows())


def with_rescored(run: Tables, trajectories: pl.LazyFrame, name: str) -> pl.LazyFrame:
    """Return rows of `trajectories` with the rewards of a rescoring in place of their own.

    All branches of an attempt have its reward. `reward`, `reward_parts` and `scored_at` are null
    where the rescoring has no reward; `reward_parts` also where it has no parts.

    Args:
        run: the run of the trajectories, or a snapshot of it.
        trajectories: rows of its table `trajectories` with all columns.
        name: name of the rescoring.

    Raises:
        SettingsError: the run has no such rescoring; the message names those that it has.
    """
    mine = pl.col("source") == name
    if name in tuple(VerdictSource) or not run.verdicts.filter(mine).head(1).collect().height:
        known = ", ".join(rescorings(run)) or "none; `rollart rescore` makes one"
        raise SettingsError(f"the run has no rescoring {name!r}; it has {known}")
    key, value = pl.col("key"), pl.col("value")
    whole, part = key == REWARD, ~key.is_in([REWARD, SUCCESS]) & value.is_not_null()
    named = pl.struct(key.str.strip_prefix(_OF_A_PART).alias("name"), value.alias("value"))
    scored = whole & value.is_not_null()
    found = (
        run.verdicts.filter(mine, pl.col("kind") == str(VerdictKind.REWARD))
        .sort("seq")
        .group_by("trajectory_id", maintain_order=True)
        .agg(
            value.filter(whole).first().alias("reward"),
            named.filter(part).alias("reward_parts"),
            pl.col("judged_at").filter(scored).first().alias("scored_at"),
        )
        .with_columns(
            pl.when(pl.col("reward").is_not_null() & (pl.col("reward_parts").list.len() > 0)).then(
                "reward_parts"
            )
        )
        .rename({"trajectory_id": "episode_id"})
    )
    schema = trajectories.collect_schema()
    replaced = [column for column in found.collect_schema() if column != "episode_id"]
    return (
        trajectories.drop(replaced)
        .join(found, on="episode_id", how="left", maintain_order="left")
        .select(pl.col(column).cast(kind) for column, kind in schema.items())
    )
