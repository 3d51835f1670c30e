"""The figures of a record, from its rows. Each is a declared metric of `catalog`."""

from collections.abc import Iterator, Mapping

import polars as pl

from rollart_flow.metrics.captured import gateway_figures, sandbox_figures
from rollart_flow.metrics.catalog import EVALUATION
from rollart_flow.metrics.figures import Figure, figure
from rollart_flow.metrics.grouped import by_label, first_rows, spread
from rollart_flow.metrics.preferences import preferences_by_step
from rollart_flow.metrics.window import RecordKind, Window
from rollart_flow.types import TRAINABLE, EventKind, Outcome

_TRAIN: Mapping[str, str] = {
    "train/loss": "loss", "train/value_loss": "value_loss", "train/grad_norm": "grad_norm",
    "train/learning_rate": "learning_rate", "train/reward": "reward_mean",
    "train/entropy": "entropy", "train/kl": "kl", "train/ratio": "ratio_mean",
    "train/ratio_max": "ratio_max", "train/clip_fraction": "clip_fraction",
    "train/mismatch_kl": "mismatch_kl", "train/mismatch_ratio_max": "mismatch_ratio_max",
    "train/ess": "ess", "train/staleness": "staleness_mean",
    "train/staleness_max": "staleness_max", "train/lag": "lag_mean", "train/lag_max": "lag_max",
    "train/trajectories": "trajectories", "train/tokens": "tokens",
    "train/action_tokens": "action_tokens", "engine/pull_seconds": "pull_s",
    "engine/exposed_pull_seconds": "exposed_pull_s", "engine/push_seconds": "push_s",
    "time/step": "step_s", "time/wait": "wait_s", "time/suspend": "suspend_s",
    "time/update": "update_s", "time/resume": "resume_s", "time/train": "train_s",
    "time/publish": "publish_s",
}  # fmt: skip
"""Column of `steps` by metric."""
_LEFT = (EventKind.DROP, EventKind.EVICT, EventKind.ABANDON)
"""Events by which a group or a trajectory leaves untrained."""
_ANSWERS = [str(outcome) for outcome in TRAINABLE]


def compute_figures(window: Window) -> tuple[Figure, ...]:
    """Return every figure that the rows of a window give."""
    if window.mark.kind is RecordKind.EVALUATION:
        return tuple(_scores(window))
    return (
        *_training(window),
        *_rollout(window),
        *_environments(window),
        *_engine(window),
        *_buffer(window),
        *gateway_figures(window),
        *sandbox_figures(window),
    )


def _scores(window: Window) -> Iterator[Figure]:
    rows = window.rows("evaluations").filter(pl.col("policy_version") == window.mark.step)
    for row in rows.iter_rows(named=True):
        known = row["low"] is not None
        interval = (row["low"], row["high"]) if known else (float("nan"), float("nan"))
        beside = (*interval, float(row["n"]))
        yield Figure(EVALUATION, row["value"], (row["metric"], row["domain"]), beside)


def _training(window: Window) -> Iterator[Figure]:
    row = window.step_row()
    for name, column in _TRAIN.items():
        if row[column] is not None:
            yield figure(name, row[column])
    yield figure("train/skipped", row["skipped"] is not None)
    groups = window.group_count()
    if groups:
        yield figure("train/zero_variance", row["zero_variance_groups"] / groups)
    for found in preferences_by_step(window.batch.lazy()).collect().iter_rows(named=True):
        for name in ("margin", "accuracy"):
            if found[name] is not None:
                yield figure(f"train/preference_{name}", found[name])
    yield from spread("train/advantage", window.batch.select(pl.col("advantage").list.mean()))


def _rollout(window: Window) -> Iterator[Figure]:
    chains, attempts = window.attempts, first_rows(window.attempts)
    seconds = (pl.col("finished_at") - pl.col("created_at")).dt.total_microseconds() / 1e6
    yield from by_label("rollout/reward", attempts, pl.col("reward"))
    yield from by_label("rollout/solved", attempts, pl.col("solved").cast(pl.Float64))
    yield from by_label("rollout/turns", attempts, pl.col("turns").list.len())
    tokens = pl.col("action_mask").list.len()
    yield from by_label("rollout/tokens", chains, tokens)
    sampled = pl.col("action_mask").list.sum()
    yield from by_label("rollout/action_tokens", chains, sampled)
    yield from by_label("rollout/seconds", attempts, seconds)
    for outcome, count in attempts.group_by("outcome").len().sort("outcome").iter_rows():
        yield figure("rollout/attempts", count, outcome)
    trained = pl.col("outcome").is_in(_ANSWERS) & pl.col("reward").is_not_null()
    totals = chains.select(all=sampled.sum(), lost=sampled.filter(~trained).sum())
    if everything := totals["all"].item():
        yield figure("rollout/wasted", totals["lost"].item() / everything)
    calls, errors = chains.select(pl.col("tool_calls").sum(), pl.col("tool_errors").sum()).row(0)
    if calls:
        yield figure("rollout/tool_errors", errors / calls)


def _environments(window: Window) -> Iterator[Figure]:
    attempts = first_rows(window.attempts)
    turns = attempts.select("domain", "turns").explode("turns").drop_nulls("turns")
    scoring = (pl.col("scored_at") - pl.col("finished_at")).dt.total_microseconds() / 1e6
    yield from by_label("env/reset_seconds", attempts, pl.col("reset_s"))
    yield from by_label("env/step_seconds", turns, pl.col("turns").struct.field("step_s"))
    yield from by_label("env/reward_seconds", attempts, scoring)
    failed = attempts.filter(pl.col("outcome").is_in([Outcome.FAILED, Outcome.TIMED_OUT]))
    yield figure("env/failures", failed.height)
    for domain, count in failed.group_by("domain").len().sort("domain").iter_rows():
        yield figure("env/failures", count, domain)


def _engine(window: Window) -> Iterator[Figure]:
    chains, row = window.attempts, window.step_row()
    turns = chains.select(pl.col("turns").explode()).drop_nulls().unnest("turns")
    if turns.height:
        generate = pl.col("generate_s")
        yield from by_label("engine/generate_seconds", turns, generate, label="hardware")
    tokens = int(chains["action_mask"].list.sum().sum())
    yield figure("engine/tokens", tokens)
    if row["step_s"]:
        yield figure("engine/tokens_per_second", tokens / row["step_s"])


def _buffer(window: Window) -> Iterator[Figure]:
    chains = window.attempts
    held = (pl.col("committed_at") - pl.col("scored_at")).dt.total_microseconds() / 1e6
    yield figure("buffer/rows", chains.height)
    yield from spread("buffer/commit_seconds", chains.select(held))
    left = window.rows("events").filter(pl.col("kind").is_in([str(kind) for kind in _LEFT]))
    reasons = left.group_by(pl.col("reason").fill_null("unknown")).len().sort("reason")
    yield figure("buffer/left", left.height)
    for reason, count in reasons.iter_rows():
        yield figure("buffer/left", count, reason)
