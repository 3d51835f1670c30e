"""Logprobs of a trajectory's tokens that are computed again and kept beside the run.

Each token is scored under two versions: the one that sampled it, which tells how far the engine and
the trainer are apart, and the one that the last step which trained on it started from. The ratio of
a token is exp(logprob under the latter - logprob of the engine), as the loss has it before the
weights change. The forward passes are in float32 on the CPU, whatever the run trained on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from rollart_flow.errors import SettingsError
from rollart_flow.replay.compare import logprob_difference
from rollart_flow.replay.logprobs import TOLERANCE, ScoredToken, score_again, score_under
from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.store.layout import has_pipeline
from rollart_flow.store.replays import LOGPROBS_SCHEMA, write_replayed


@dataclass(frozen=True, slots=True)
class KeptLogprobs:
    """Logprobs of one trajectory that were computed again and written."""

    trajectory_id: str
    uri: str
    """Address of the file."""
    tokens: int
    gap_max: float
    """Largest difference from the engine's logprob under the same version [nats]."""
    divergence: str | None
    """The first logprob that differs by more than rounding, in one line; None if there is none."""
    step: int | None
    """The last step that trained on the trajectory, None if none did."""
    ratio_mean: float | None
    ratio_max: float | None


def keep_logprobs(run_uri: str, trajectory_id: str) -> KeptLogprobs:
    """Score the tokens of a trajectory again, and write the logprobs into the run's folder.

    The tables are not changed, so that the run may be live.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: there is no such trajectory, it has no action token, or the run has no
            pipeline.
        WeightsError: a version is neither stored any longer nor can it be recomputed.
        TrainerError: the row cannot be scored, such as one with a token outside the vocabulary.
        StoreError: the file cannot be written.
    """
    run = Run(run_uri)
    _, trajectory = read_attempt(run, trajectory_id)
    if not has_pipeline(run.uri):
        raise SettingsError(
            f"run {run.info.name} has no pipeline, which says how tokens are scored"
        )
    pipeline = stored_pipeline(run)
    tokens = score_again(run, pipeline, trajectory)
    if not tokens:
        raise SettingsError(f"trajectory {trajectory_id} has no token that could be trained on")
    step, version = _last_trained(run, trajectory_id)
    trained: list[float] | None = None
    if version is not None:
        trained = [token.recomputed for token in tokens]
        if any(token.version != version for token in tokens):
            trained = score_under(run, pipeline, trajectory, version)
    logprobs = _frame(tokens, step, version, trained)
    wrong = logprob_difference(tokens, TOLERANCE[pipeline.policy.computes_in])
    ratios = None if trained is None else _ratios(tokens, trained)
    return KeptLogprobs(
        trajectory_id=trajectory_id,
        uri=write_replayed(run.uri, trajectory_id, logprobs),
        tokens=len(tokens),
        gap_max=max(token.gap for token in tokens),
        divergence=None if wrong is None else wrong.removeprefix(", "),
        step=step,
        ratio_mean=None if ratios is None else sum(ratios) / len(ratios),
        ratio_max=None if ratios is None else max(ratios),
    )


def _last_trained(run: Run, trajectory_id: str) -> tuple[int | None, int | None]:
    """Return (step, version that it started from) of the last step that trained on a trajectory."""
    mine = run.batches.filter(pl.col("trajectory_id") == trajectory_id).sort("step").tail(1)
    rows = mine.select("step", "trained_version").collect().rows()
    return rows[0] if rows else (None, None)


def _frame(
    tokens: list[ScoredToken], step: int | None, version: int | None, trained: list[float] | None
) -> pl.DataFrame:
    under: Sequence[float | None] = trained or [None] * len(tokens)
    rows = [
        (token.position, token.recomputed, step, version, logprob)
        for token, logprob in zip(tokens, under, strict=True)
    ]
    return pl.DataFrame(rows, schema=LOGPROBS_SCHEMA, orient="row")


def _ratios(tokens: list[ScoredToken], trained: list[float]) -> list[float]:
    pairs = zip(tokens, trained, strict=True)
    return [math.exp(min(700.0, logprob - token.recorded)) for token, logprob in pairs]
