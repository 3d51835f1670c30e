"""`rescore`: another reward over the stored attempts of a run, for callers in Python.

A reward function has the name "FILE.py:FUNCTION" in the shell; the file runs like a pipeline file.
"""

import asyncio
import hashlib
import inspect
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from rollart_flow.checking.rescoring import check_rescore_name, free_rescore_name
from rollart_flow.checking.reward_rescoring import RewardRescoring, ScoredAgain, score_again
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.loading import read_source, run_source
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.store import Run, open_run
from rollart_flow.validation import check_count, check_number

T = TypeVar("T")
OnScored = Callable[[ScoredAgain], None]


@dataclass(frozen=True, slots=True)
class RescoreResult:
    """Result of a call of `rescore`."""

    run: str
    """Name of the run."""
    name: str
    """Name of the rescoring."""
    scored: int
    """Attempts that got a reward."""
    failed: int
    """Attempts for which the function raised, took too long or returned no finite number."""
    changed: int
    """Attempts whose reward differs from the one of the run."""
    reward_before: float | None
    """Mean reward of the run over those of the scored attempts that had one."""
    reward_after: float | None
    """Mean of the new rewards."""


def rescore(
    run: Run | str | os.PathLike[str],
    fn: RewardFunction | str,
    *,
    name: str | None = None,
    filter: pl.Expr | str | None = None,
    timeout_s: float = 600.0,
    workers: int | None = None,
    environ: Collection[str] = (),
    store: str | os.PathLike[str] | None = None,
    on_scored: OnScored | None = None,
) -> RescoreResult:
    """Score the completed and truncated attempts of an ended run with another reward function.

    The rewards become rows of the table `verdicts`; `store.rescored.with_rescored` puts them in the
    place of the run's. A rescoring that was interrupted goes on if its name is given again.

    Args:
        run: an opened run, or the path, URI or name of one.
        fn: a reward function as in `reward`, "FILE.py:FUNCTION", or the URL of one.
        name: name of the rescoring; "rescore-N" by default.
        filter: condition on rows of `trajectories`, as an expression of polars or as text.
        timeout_s: limit of each call [s].
        workers: calls at a time; one for each core by default.
        environ: environment variables that the function's process gets.
        store: store in which names are looked up; $ROLLART_STORE or ./runs by default.
        on_scored: called with the rewards of each attempt once they are committed.

    Raises:
        RunNotFoundError: there is no such run.
        SettingsError: a process drives the run, or an argument is wrong.
        PipelineError: the file cannot be read, or fails.
        QueryError: the condition is wrong.
        StoreError: the run cannot be read or written.
    """
    from rollart_flow.algorithms.filters import filter_of

    check_number("timeout_s", timeout_s, low=0, open_low=True)
    workers = os.cpu_count() or 1 if workers is None else workers
    check_count("workers", workers, low=1)
    stored = run if isinstance(run, Run) else open_run(run, store=store)
    chosen = free_rescore_name(stored) if name is None else name
    check_rescore_name(chosen)
    function, source, digest = _function(fn, timeout_s)
    settings = RewardRescoring(
        function=function,
        name=chosen,
        where=filter_of(filter) if isinstance(filter, str) else filter,
        timeout_s=timeout_s,
        workers=workers,
        source=source,
        digest=digest,
        environ=tuple(environ),
    )
    return _apart(lambda: asyncio.run(_summed(stored, settings, on_scored)))


async def _summed(run: Run, settings: RewardRescoring, on_scored: OnScored | None) -> RescoreResult:
    scored = failed = changed = had = 0
    before = after = 0.0
    async for each in score_again(run, settings):
        if on_scored is not None:
            on_scored(each)
        if each.after is None:
            failed += 1
            continue
        scored += 1
        changed += each.after != each.before
        after += each.after
        if each.before is not None:
            had, before = had + 1, before + each.before
    means = before / had if had else None, after / scored if scored else None
    return RescoreResult(run.info.name, settings.name, scored, failed, changed, *means)


def _apart(call: Callable[[], T]) -> T:
    """Return the result of a call that runs an event loop, also where one runs already."""
    if not _loop_runs():
        return call()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _function(
    fn: RewardFunction | str, timeout_s: float
) -> tuple[RewardFunction, Path | None, str | None]:
    """Return a reward function, the file that it is in, and its digest where that is known."""
    if not isinstance(fn, str):
        if not callable(fn):
            raise SettingsError(f"fn is {type(fn).__name__}; give a function of a Trajectory")
        return fn, None, _digest_of(fn)
    file, _, function = fn.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        if "://" not in fn:
            raise SettingsError(f"reward {fn!r} is not FILE.py:FUNCTION, nor the URL of a function")
        from rollart_flow.serverless import CallPolicy, ServerlessReward

        return ServerlessReward(fn, CallPolicy(deadline_s=timeout_s)), None, _digest(fn)
    text = read_source(file, "reward")
    names = run_source(text, file)
    if not callable(found := names.get(function)):
        kind = "has no" if function not in names else f"has {type(found).__name__}, no function, as"
        raise SettingsError(f"{file} {kind} {function!r}")
    return found, Path(file).resolve(), _digest(f"{text}\0{function}")


def _digest_of(fn: RewardFunction) -> str | None:
    try:
        return _digest(inspect.getsource(fn))
    except (OSError, TypeError):
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
