"""The chain of a trajectory as one row for each token."""

from functools import cache

import polars as pl

from rollart_flow.analysis.spelling import speller
from rollart_flow.store.replays import LOGPROBS_SCHEMA, read_replayed
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.step_logprobs import read_step_logprobs


def tokens(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return the tokens of a trajectory in order.

    Columns: position, token_id, text, turn, sampled, trained, logprob and version (both null where
    the token was not sampled), and advantage: that of the last step that trained on the token, null
    if none did. trained_logprob is the trainer's, under the version that this step started from,
    and ratio = exp(trained_logprob - logprob); both are null unless the run keeps the logprobs of
    its trainer, or `rollart replay --logprobs` kept those of this step. replayed_logprob under the
    token's own version, and its difference from the engine's logprob [nats], come from a replay
    alone.

    Args:
        snapshot: the tables.
        trajectory: its id.
    """
    mine = pl.col("trajectory_id") == trajectory
    row = snapshot.trajectories.filter(mine).select(
        "token_ids", "action_mask", "logprobs", "token_versions",
        ends=pl.col("turns").list.eval(pl.element().struct.field("end")),
    ).head(1)  # fmt: skip
    trained = snapshot.batches.filter(mine).sort("step").select("advantage").tail(1)
    chains, advantages = (frame.to_dicts() for frame in pl.collect_all([row, trained]))
    spell = cache(speller(snapshot.run))
    given = advantages[0]["advantage"] if advantages else []
    rows, turn, action = [], 0, 0
    for chain in chains:
        lists = (chain[n] for n in ("token_ids", "action_mask", "logprobs", "token_versions"))
        for position, (token, trains, logprob, version) in enumerate(zip(*lists, strict=True)):
            while turn < len(chain["ends"]) and position >= chain["ends"][turn]:
                turn += 1
            drawn = version >= 0
            advantage = given[action % len(given)] if trains and given else None
            action += trains
            rows.append(
                (
                    position, token, spell(token), turn, drawn, trains,
                    logprob if drawn else None, version if drawn else None, advantage,
                )
            )  # fmt: skip
    frame = pl.LazyFrame(rows, schema=_SCHEMA, orient="row")
    return _with_trainer(frame, snapshot, trajectory)


def replayed(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return one row about the trainer's logprobs that the run or a replay kept; none without any.

    Columns: tokens (with a logprob of a replay), difference_max (the largest absolute difference of
    those from the engine's logprobs under the same version [nats]; null without a replay), step,
    trained_version, ratio_mean and ratio_max; the last four are null if neither the run nor the
    replay has logprobs of the last step that trained on the trajectory.

    Args:
        snapshot: the tables.
        trajectory: its id.
    """
    step, version = _last_step(snapshot, trajectory)
    trained = pl.col("ratio").is_not_null()
    counted = tokens(snapshot, trajectory).select(
        tokens=pl.col("replayed_logprob").count(),
        difference_max=pl.col("difference").abs().max(),
        step=pl.when(trained.any()).then(pl.lit(step, pl.Int64)),
        trained_version=pl.when(trained.any()).then(pl.lit(version, pl.Int64)),
        ratio_mean=pl.col("ratio").mean(),
        ratio_max=pl.col("ratio").max(),
    )
    return counted.filter((pl.col("tokens") > 0) | pl.col("step").is_not_null())


def _last_step(snapshot: Snapshot, trajectory: str) -> tuple[int | None, int | None]:
    """Return the last step that trained on a trajectory, and the version that it started from."""
    mine = snapshot.batches.filter(pl.col("trajectory_id") == trajectory).sort("step").tail(1)
    rows = mine.select("step", "trained_version").collect().rows()
    return rows[0] if rows else (None, None)


def _with_trainer(chain: pl.LazyFrame, snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Add to each token what the run and a replay kept of the trainer's logprobs."""
    replayed = read_replayed(snapshot.run, trajectory)
    replayed = pl.DataFrame(schema=LOGPROBS_SCHEMA) if replayed is None else replayed
    step, _ = _last_step(snapshot, trajectory)
    # Another step: one trained on it since, or this moment of the past does not have the step yet.
    same = pl.col("step") == pl.lit(step, pl.Int64)
    again = replayed.lazy().select(
        "position", "replayed_logprob", again_logprob=pl.when(same).then("trained_logprob")
    )
    kept = None if step is None else read_step_logprobs(snapshot.run, step, trajectory)
    own = pl.LazyFrame({"action": range(len(kept or ())), "own_logprob": kept or ()}, schema=_KEPT)
    engine = pl.col("logprob")
    chain = chain.with_columns(action=pl.when("trained").then(pl.col("trained").cum_sum() - 1))
    chain = chain.join(own, on="action", how="left", maintain_order="left")
    return (
        chain.join(again, on="position", how="left", maintain_order="left")
        .with_columns(trained_logprob=pl.coalesce("own_logprob", "again_logprob"))
        .select(
            *_SCHEMA.names(),
            "replayed_logprob",
            (pl.col("replayed_logprob") - engine).alias("difference"),
            "trained_logprob",
            (pl.col("trained_logprob") - engine).exp().alias("ratio"),
        )
    )


_KEPT = pl.Schema({"action": pl.Int64, "own_logprob": pl.Float64})
_SCHEMA = pl.Schema({
    "position": pl.Int64, "token_id": pl.Int64, "text": pl.String, "turn": pl.Int64,
    "sampled": pl.Boolean, "trained": pl.Boolean, "logprob": pl.Float64, "version": pl.Int64,
    "advantage": pl.Float64,
})  # fmt: skip
