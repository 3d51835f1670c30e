"""Rescoring: a verifier judges the stored diffs of a run again, without sampling.

The invariants: rows are only added, under a name of their own, so that what the run was trained on
stays as it was; an attempt is judged once under a name, also if a rescoring is interrupted and
repeated; a run that is being driven is left alone.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from rollart_flow.checking.judging import DomainJudge
from rollart_flow.envs.base import Domain
from rollart_flow.errors import EnvironmentFailedError, EnvironmentTimeoutError, SettingsError
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunStatus, RunWriter
from rollart_flow.store.lease import Lease
from rollart_flow.store.rescored import REWARD, SUCCESS
from rollart_flow.text import one_line
from rollart_flow.types.verdicts import Judgement, Verdict, VerdictKind, VerdictSource
from rollart_flow.verdict_rows import judged_rows, verdict_from_row

_AT_ONCE = 64
"""Attempts whose diffs are read, and whose verdicts are committed, together."""

Change = tuple[bool | None, bool | None]
"""Whether a test, or the whole attempt, passed before and passes now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreSettings:
    """Settings of a second judgement of attempts."""

    domains: tuple[Domain, ...]
    """Domains whose attempts are judged."""
    name: str
    """Name of the rescoring, the `source` of its verdicts."""
    timeout_s: float = 600.0
    """Limit of each judgement [s]."""
    workers: int = 1
    source: Path | None = None
    """Pipeline file, for domains that cannot be imported by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """The new judgement of one attempt, compared with the judgement before it."""

    trajectory_id: str
    task_id: str
    domain: str
    solved: Change
    """Whether the attempt solved its task, before and now."""
    verdicts: Mapping[str, Change]
    """Tests that passed before and fail now, or the other way round, or are there only once."""
    error: str | None = None
    """Why there is no judgement, in one line; None if there is one."""

    @property
    def changed(self) -> bool:
        """Whether anything is judged otherwise than before."""
        return self.error is None and (self.solved[0] is not self.solved[1] or bool(self.verdicts))


def free_rescore_name(run: Run) -> str:
    """Return "rescore-N" with the first number that no rescoring of a run has."""
    taken = set(run.verdicts.select("source").unique().collect()["source"])
    return next(name for n in range(1, len(taken) + 2) if (name := f"rescore-{n}") not in taken)


def check_rescore_name(name: str) -> None:
    """Raise SettingsError for the name of a rescoring that is that of another source."""
    if not name or name in tuple(VerdictSource):
        raise SettingsError(f"a rescoring cannot be named {name!r}; choose another --name")


async def rescore(run: Run, settings: RescoreSettings) -> AsyncGenerator[Rescored, None]:
    """Judge the attempts of a run that left a diff, and yield what came of each.

    Attempts that were judged under the name before are passed over.

    Raises:
        SettingsError: a process drives the run.
        StoreError: the run cannot be read or written.
    """
    judges = _Judges(settings)
    with added_to(run) as writer:
        try:
            for rows in _unjudged(run, settings):
                before = _known(run, [row["trajectory_id"] for row in rows])
                judged = await asyncio.gather(*map(judges.judge, rows))
                pairs = list(zip(rows, judged, strict=True))
                if found := [new for pair in pairs for new in _rows(*pair, settings.name)]:
                    table: pa.Table = to_table("verdicts", found)
                    await asyncio.to_thread(writer.commit, "verdicts", table)
                for row, judgement in pairs:
                    yield _compared(row, judgement, before.get(row["trajectory_id"], {}))
        finally:
            await judges.close()


class _Judges:
    """Processes of verifiers, each for one domain."""

    def __init__(self, settings: RescoreSettings) -> None:
        self._settings = settings
        self._domains = {domain.name: domain for domain in settings.domains}
        self._places = asyncio.Semaphore(settings.workers)
        self._idle: dict[str, list[DomainJudge]] = {name: [] for name in self._domains}

    async def judge(self, row: Mapping[str, Any]) -> Judgement | str:
        """Return the judgement on an attempt, or in one line why there is none."""
        settings, name = self._settings, row["domain"]
        async with self._places:
            idle = self._idle[name]
            judge = (
                idle.pop()
                if idle
                else DomainJudge(self._domains[name], settings.timeout_s, settings.source)
            )
            try:
                return await judge.judge(row["task"], row["diff"])
            except (EnvironmentFailedError, EnvironmentTimeoutError) as error:
                return one_line(error)
            finally:
                idle.append(judge)

    async def close(self) -> None:
        for judges in self._idle.values():
            while judges:
                await judges.pop().close()


@contextmanager
def added_to(run: Run) -> Iterator[RunWriter]:
    """Open the writer of a run that has ended, and that stays as it ended."""
    info = run.info
    if info.status is RunStatus.RUNNING:
        raise SettingsError(f"run {info.name} is running; rescore it once it has ended")
    with Lease(run.uri, term=info.term) as lease:
        writer = RunWriter.open(run.uri, lease.tenure, ended=True)
        try:
            yield writer
        finally:
            writer.close(writer.info.status, writer.info.error)


def _unjudged(run: Run, settings: RescoreSettings) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of attempts to judge, some at a time, in the order of their commit."""
    done = run.verdicts.filter(pl.col("source") == settings.name).select("trajectory_id")
    names = [domain.name for domain in settings.domains]
    wanted = pl.col("domain").is_in(names) & pl.col("diff").is_not_null()
    todo = run.trajectories.filter(wanted).select("seq", "trajectory_id")
    ids = todo.join(done.unique(), on="trajectory_id", how="anti").collect().sort("seq")
    columns = ("seq", "trajectory_id", "task_id", "domain", "task", "diff", "solved")
    for start in range(0, ids.height, _AT_ONCE):
        seqs = ids["seq"][start : start + _AT_ONCE].to_list()
        rows = run.trajectories.filter(pl.col("seq").is_in(seqs)).select(columns)
        yield rows.collect().sort("seq").to_dicts()


def _known(run: Run, trajectory_ids: Sequence[str]) -> dict[str, dict[str, Verdict]]:
    """Return by trajectory the verdicts of the verifier that judged it last, by kind and key."""
    mine = pl.col("trajectory_id").is_in(trajectory_ids)
    rows = run.verdicts.filter(mine, pl.col("source") != VerdictSource.REWARD).collect()
    found: dict[str, tuple[str, dict[str, Verdict]]] = {}
    for row in rows.sort("seq").to_dicts():
        verdict, whose = verdict_from_row(row), row["trajectory_id"]
        if whose not in found or found[whose][0] != row["source"]:
            found[whose] = row["source"], {}
        found[whose][1][_place(verdict)] = verdict
    return {whose: verdicts for whose, (_, verdicts) in found.items()}


def _place(verdict: Verdict) -> str:
    return f"{verdict.kind}:{verdict.key}"


def _rows(
    row: Mapping[str, Any], judgement: Judgement | str, name: str
) -> Iterator[dict[str, Any]]:
    """Rows of `verdicts` of one judgement; none if there is none."""
    if isinstance(judgement, str):
        return
    own = {REWARD: judgement.reward, SUCCESS: float(judgement.success)}
    verdicts = {_place(each): each for each in judgement.verdicts}
    for key, value in own.items():
        verdict = Verdict(key=key, kind=VerdictKind.REWARD, value=value)
        verdicts[_place(verdict)] = verdict
    yield from judged_rows(
        row,
        list(verdicts.values()),
        source=name,
        judged_at=datetime.now(UTC),
        verifier=judgement.verifier or None,
    )


def _compared(
    row: Mapping[str, Any], judgement: Judgement | str, before: Mapping[str, Verdict]
) -> Rescored:
    """Compare a judgement with the newest one before, or with what the environment said."""
    whose = {name: row[name] for name in ("trajectory_id", "task_id", "domain")}
    success = before.get(f"{VerdictKind.REWARD}:{SUCCESS}")
    solved = row["solved"] if success is None or success.value is None else success.value > 0
    if isinstance(judgement, str):
        return Rescored(**whose, solved=(solved, None), verdicts={}, error=judgement)
    tests = {each.key: each.passed for each in before.values() if each.kind is VerdictKind.TEST}
    now = {each.key: each.passed for each in judgement.verdicts if each.kind is VerdictKind.TEST}
    changes = {key: (tests.get(key), now.get(key)) for key in tests | now}
    return Rescored(
        **whose,
        solved=(solved, judgement.success),
        verdicts={key: change for key, change in changes.items() if change[0] is not change[1]},
    )
