"""Costs of stages in separate places: the disaggregation tax of a run.

The three paths are those of ROLLART section 7.5: weights from the trainer to the engines, turns
between environments and engines, and trajectories to the reward.
"""

from typing import TYPE_CHECKING

import polars as pl

from rollart_flow.analysis.accounting.columns import seconds_between, summed
from rollart_flow.types import Split

if TYPE_CHECKING:
    from rollart_flow.store.snapshot import Tables

_TOKEN_BYTES = 13
"""Bytes of a token in a trajectory: its id, logprob and version with 4 each, its mask with 1."""


def transfers(tables: "Tables") -> pl.LazyFrame:
    """Return the bytes and seconds of what crosses between the stages of a run.

    Columns: path, calls, bytes_mean, bytes_max, seconds_mean, seconds_max; null where the tables do
    not tell. The paths:

    - weights: one call for each step that pulled weights; seconds are those for which generation
      waited (`steps.exposed_pull_s`), bytes those of a published version.
    - environment: one call for each turn; bytes are those of observation and action, seconds the
      time of a turn that is neither generation nor environment, which is an upper bound: rendering
      and waiting for a place are in it. An attempt's maximum is the mean of its turns. Attempts of
      captured agents are left out, since their programs work between calls.
    - reward: one call for each scored attempt; bytes are those of its tokens and texts, seconds the
      time from its end to its score, the reward's own work included.
    """
    return pl.concat([_weights(tables), _environment(tables), _reward(tables)])


def _weights(tables: "Tables") -> pl.LazyFrame:
    pulled = tables.steps.filter(pl.col("pull_s") > 0).select(seconds="exposed_pull_s")
    sizes = tables.weights.select(bytes=pl.col("size_bytes").cast(pl.Float64))
    seconds = pulled.select(
        calls=pl.len().cast(pl.Int64),
        seconds_mean=pl.col("seconds").mean(),
        seconds_max=pl.col("seconds").max(),
    )
    published = sizes.select(bytes_mean=pl.col("bytes").mean(), bytes_max=pl.col("bytes").max())
    return _path("weights", pl.concat([seconds, published], how="horizontal"))


def _environment(tables: "Tables") -> pl.LazyFrame:
    captured = tables.exchanges.select("episode_id").unique()
    turns = pl.col("turns")
    rows = tables.trajectories.filter(turns.list.len() > 0)
    attempts = rows.join(captured, on="episode_id", how="anti").group_by("episode_id").agg(
        turns=turns.list.len().sum().cast(pl.Int64),
        bytes=_text_bytes().list.sum().sum(),
        largest=_text_bytes().list.max().max(),
        inner_s=summed("generate_s").sum() + summed("step_s").sum() + pl.col("reset_s").max(),
        whole_s=(pl.col("finished_at").max() - pl.col("created_at").min())
        .dt.total_microseconds() / 1e6,
    )  # fmt: skip
    rest = (pl.col("whole_s") - pl.col("inner_s")).clip(lower_bound=0.0)
    return _path(
        "environment",
        attempts.with_columns(rest=rest).select(
            calls=pl.col("turns").sum(),
            bytes_mean=pl.col("bytes").sum() / pl.col("turns").sum(),
            bytes_max=pl.col("largest").max(),
            seconds_mean=pl.col("rest").sum() / pl.col("turns").sum(),
            seconds_max=(pl.col("rest") / pl.col("turns")).max(),
        ),
    )


def _reward(tables: "Tables") -> pl.LazyFrame:
    scored = tables.trajectories.filter(
        (pl.col("split") == Split.TRAIN) & pl.col("scored_at").is_not_null()
    )
    tokens = pl.col("token_ids").list.len().cast(pl.Float64) * _TOKEN_BYTES
    took = seconds_between("finished_at", "scored_at")
    attempts = scored.group_by("episode_id").agg(
        bytes=(tokens + _text_bytes().list.sum()).sum(), seconds=took.max()
    )
    return _path(
        "reward",
        attempts.select(
            calls=pl.len().cast(pl.Int64),
            bytes_mean=pl.col("bytes").mean(),
            bytes_max=pl.col("bytes").max(),
            seconds_mean=pl.col("seconds").mean(),
            seconds_max=pl.col("seconds").max(),
        ),
    )


def _path(name: str, figures: pl.LazyFrame) -> pl.LazyFrame:
    return figures.select(
        pl.lit(name).alias("path"),
        pl.col("calls").fill_null(0),
        *(
            pl.col(column).cast(pl.Float64)
            for column in ("bytes_mean", "bytes_max", "seconds_mean", "seconds_max")
        ),
    )


def _text_bytes() -> pl.Expr:
    field = pl.element().struct.field
    said = field("observation").str.len_bytes() + field("action").str.len_bytes()
    return pl.col("turns").list.eval(said.cast(pl.Float64))
