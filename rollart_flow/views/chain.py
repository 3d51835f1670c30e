"""The chain of a trajectory as one row for each token."""

from functools import cache

import polars as pl

from rollart_flow.analysis.spelling import speller
from rollart_flow.store.snapshot import Snapshot


def tokens(snapshot: Snapshot, trajectory: str) -> pl.LazyFrame:
    """Return the tokens of a trajectory in order.

    Columns: position, token_id, text, turn, sampled, trained, logprob and version (both null where
    the token was not sampled), and advantage: that of the last step that trained on the token, null
    if none did. A trainer's logprobs are in no table; `rollart replay` computes them.

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
    return pl.LazyFrame(rows, schema=_SCHEMA, orient="row")


_SCHEMA = pl.Schema({
    "position": pl.Int64, "token_id": pl.Int64, "text": pl.String, "turn": pl.Int64,
    "sampled": pl.Boolean, "trained": pl.Boolean, "logprob": pl.Float64, "version": pl.Int64,
    "advantage": pl.Float64,
})  # fmt: skip
