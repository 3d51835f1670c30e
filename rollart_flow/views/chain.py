"""The chain of a trajectory as one row for each token."""

from functools import cache

import polars as pl

from rollart_flow.analysis.spelling import speller
from rollart_flow.store.replays import LOGPROBS_SCHEMA, read_replayed
from rollart_flow.store.snapshot import Snapshot


def tokens(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return the tokens of a trajectory in order.

    Columns: position, token_id, text, turn, sampled, trained, logprob and version (both null where
    the token was not sampled), and advantage: that of the last step that trained on the token, null
    if none did. The others are null unless `rollart replay --logprobs` kept what it computed:
    replayed_logprob under the token's own version, difference of that from the engine's logprob
    [nats], and, where the step of the replay is the last that trained on the token, trained_logprob
    under the version that this step started from, and ratio = exp(trained_logprob - logprob).

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
    return _with_replay(frame, snapshot, trajectory)


def replayed(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return one row about the logprobs that `rollart replay --logprobs` kept; none without them.

    Columns: tokens, difference_max (the largest absolute difference from the engine's logprobs
    under the same version [nats]), step, trained_version, ratio_mean and ratio_max; the last four
    are null if the replay knew no step that had trained on the trajectory, or not the last one.

    Args:
        snapshot: the tables.
        trajectory: its id.
    """
    kept = tokens(snapshot, trajectory).filter(pl.col("replayed_logprob").is_not_null())
    file = read_replayed(snapshot.run, trajectory)
    file = pl.DataFrame(schema=LOGPROBS_SCHEMA) if file is None else file
    step = file.lazy().select("position", "step", "trained_version")
    trained = pl.col("ratio").is_not_null()
    counted = kept.join(step, on="position", how="left").select(
        tokens=pl.len(),
        difference_max=pl.col("difference").abs().max(),
        step=pl.col("step").filter(trained).max(),
        trained_version=pl.col("trained_version").filter(trained).max(),
        ratio_mean=pl.col("ratio").mean(),
        ratio_max=pl.col("ratio").max(),
    )
    return counted.filter(pl.col("tokens") > 0)


def _with_replay(chain: pl.LazyFrame, snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Add to each token what a replay kept of it."""
    kept = read_replayed(snapshot.run, trajectory)
    kept = pl.DataFrame(schema=LOGPROBS_SCHEMA) if kept is None else kept
    mine = snapshot.batches.filter(pl.col("trajectory_id") == trajectory)
    step = mine.select(pl.col("step").max()).collect().item()
    # Another step: one trained on it since, or this moment of the past does not have the step yet.
    same = pl.col("step") == pl.lit(step, pl.Int64)
    again = kept.lazy().select(
        "position", "replayed_logprob", trained_logprob=pl.when(same).then("trained_logprob")
    )
    engine = pl.col("logprob")
    return chain.join(again, on="position", how="left", maintain_order="left").select(
        *_SCHEMA.names(),
        "replayed_logprob",
        (pl.col("replayed_logprob") - engine).alias("difference"),
        "trained_logprob",
        (pl.col("trained_logprob") - engine).exp().alias("ratio"),
    )


_SCHEMA = pl.Schema({
    "position": pl.Int64, "token_id": pl.Int64, "text": pl.String, "turn": pl.Int64,
    "sampled": pl.Boolean, "trained": pl.Boolean, "logprob": pl.Float64, "version": pl.Int64,
    "advantage": pl.Float64,
})  # fmt: skip
