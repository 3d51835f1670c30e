"""Rescoring by a reward function: other rewards for the stored attempts of a run, without sampling.

The invariants: rows are only added to the table `verdicts`, under a name of their own, so that what
the run was trained on stays as it was; an attempt is scored once under a name, also if a rescoring
is interrupted and repeated; the function sees what a reward function sees in a run, in a process of
its own that is killed at the time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from rollart_flow.checking.rescoring import added_to
from rollart_flow.errors import QueryError, SettingsError
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.score import Scorer, ScoreResult
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunWriter, files
from rollart_flow.store.rescored import REWARD, key_of_part
from rollart_flow.types import TRAINABLE
from rollart_flow.types.verdicts import Verdict, VerdictKind
from rollart_flow.verdict_rows import judged_rows

if TYPE_CHECKING:
    from rollart_flow.replay.stored_attempts import StoredAttempt

_FEWEST, _MOST = 64, 1024
"""Attempts that are read and committed together: few where scoring takes long."""
_QUICK_S = 1.0
"""Time of a commit's attempts below which the next commit has twice as many [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRescoring:
    """Settings of a rescoring by a reward function."""

    function: RewardFunction
    name: str
    """Name of the rescoring, the `source` of its verdicts."""
    where: pl.Expr | None = None
    """Condition on rows of `trajectories`; an attempt is scored if one of its rows meets it."""
    timeout_s: float = 600.0
    """Limit of each call [s]."""
    workers: int = 1
    """Calls at a time."""
    source: Path | None = None
    """File of a function that cannot be imported by name."""
    digest: str | None = None
    """Digest of the function, the `verifier` of its verdicts; None if it is not known."""
    environ: tuple[str, ...] = ()
    """Environment variables that the function's process gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAgain:
    """The new reward of an attempt beside the one that it had."""

    trajectory_id: str
    task_id: str
    domain: str
    before: float | None
    """Reward of the run; None if it was never scored."""
    after: float | None
    """Reward of the function; None if there is none."""
    error: str | None
    """Why there is none, in one line."""
    seconds: float
    """Time of the call [s]."""


async def score_again(run: Run, settings: RewardRescoring) -> AsyncGenerator[ScoredAgain, None]:
    """Score the completed and truncated attempts of a run, and yield the rewards of each.

    Attempts that have a row under the name are passed over. If the caller is cancelled, what is
    scored by then is committed.

    Raises:
        SettingsError: a process drives the run, or another function has scored under the name.
        QueryError: the condition cannot be evaluated.
        StoreError: the run cannot be read or written.
    """
    from rollart_flow.replay.stored_attempts import attempts_to_score  # its package loads torch

    _check_digest(run, settings)
    todo = _to_score(run, settings)
    scorer = Scorer(settings.function, settings.source, environ=settings.environ)
    places = asyncio.Semaphore(settings.workers)

    async def scored(attempt: StoredAttempt) -> tuple[StoredAttempt, ScoreResult, float]:
        async with places:
            began = time.perf_counter()
            found = await scorer.verdict(attempt.seen, settings.timeout_s)
            return attempt, found, time.perf_counter() - began

    with added_to(run) as writer:
        try:
            count, start = _FEWEST, 0
            while start < todo.height:
                began = time.perf_counter()
                attempts = await asyncio.to_thread(attempts_to_score, run, todo[start:][:count])
                tasks = [asyncio.create_task(scored(each)) for each in attempts]
                try:
                    await asyncio.gather(*tasks)
                finally:
                    done = [*_results(tasks)]
                    _commit(writer, done, settings)
                for attempt, found, seconds in done:
                    yield _beside(attempt, found, seconds)
                start += count
                quick = time.perf_counter() - began < _QUICK_S
                count = min(2 * count, _MOST) if quick else _FEWEST
        finally:
            await scorer.close()


def _results(
    tasks: Sequence[asyncio.Task[tuple[StoredAttempt, ScoreResult, float]]],
) -> Iterator[tuple[StoredAttempt, ScoreResult, float]]:
    """Yield the results of the tasks that have one, and cancel the others."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is None:
            yield task.result()
        else:
            task.cancel()


def _check_digest(run: Run, settings: RewardRescoring) -> None:
    mine = pl.col("source") == settings.name
    known = run.verdicts.filter(mine).select("verifier").unique().collect()["verifier"].to_list()
    if known and known != [settings.digest]:
        raise SettingsError(
            f"another function has made the rescoring {settings.name!r}; choose another name"
        )


def _to_score(run: Run, settings: RewardRescoring) -> pl.DataFrame:
    """Return seq and episode of all rows of the attempts to score, in the order of first commits.

    An attempt is one row here: its episode, and the first and the last seq of its rows.
    """
    mine = pl.col("source") == settings.name
    done = run.verdicts.filter(mine).select("trajectory_id").unique()
    trainable = pl.col("outcome").is_in([str(outcome) for outcome in TRAINABLE])
    rows = run.trajectories
    try:
        if settings.where is not None:
            kept = rows.filter(settings.where).select("episode_id").unique()
            rows = rows.join(kept, on="episode_id", how="semi")
        return (
            rows.filter(trainable)
            .group_by("episode_id")
            .agg(
                pl.col("seq").min().alias("first"),
                pl.col("seq").max().alias("last"),
                pl.col("trajectory_id").sort_by("seq").first(),
            )
            .join(done, on="trajectory_id", how="anti")
            .sort("first")
            .collect(engine="streaming")
        )
    except pl.exceptions.PolarsError as error:
        raise QueryError(f"filter: {files.one_line(error)}") from error


def _commit(
    writer: RunWriter,
    done: Sequence[tuple[StoredAttempt, ScoreResult, float]],
    settings: RewardRescoring,
) -> None:
    now = datetime.now(UTC)
    rows = [
        row
        for attempt, found, seconds in done
        for row in judged_rows(
            attempt.seen,
            _verdicts(found, seconds),
            source=settings.name,
            judged_at=now,
            verifier=settings.digest,
        )
    ]
    if rows:
        writer.commit("verdicts", to_table("verdicts", rows))


def _verdicts(found: ScoreResult, seconds: float) -> list[Verdict]:
    """Return a result as verdicts: the reward, then its parts, then the other verdicts."""
    kind = VerdictKind.REWARD
    whole = Verdict(key=REWARD, kind=kind, value=found.reward, seconds=seconds, message=found.error)
    made = {(kind, REWARD): whole}
    said = {(each.kind, each.key): each for each in found.verdicts}
    for name, value in (found.parts or {}).items():
        key, about = key_of_part(name), said.pop((kind, name), None)
        made[kind, key] = replace(about or Verdict(key=key, kind=kind), key=key, value=value)
    for (of, name), verdict in said.items():
        key = key_of_part(name) if of is kind else name
        made.setdefault((of, key), replace(verdict, key=key))
    return list(made.values())


def _beside(attempt: StoredAttempt, found: ScoreResult, seconds: float) -> ScoredAgain:
    seen = attempt.seen
    return ScoredAgain(
        trajectory_id=seen.trajectory_id,
        task_id=seen.task_id,
        domain=seen.domain,
        before=attempt.reward,
        after=found.reward,
        error=found.error,
        seconds=seconds,
    )
