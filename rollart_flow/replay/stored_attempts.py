"""The attempts of a run as they were committed: branches with images, verdicts and calls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from rollart_flow.errors import SettingsError
from rollart_flow.exchange_rows import exchange_from_row
from rollart_flow.rows import trajectory_from_row
from rollart_flow.store import Run
from rollart_flow.types import Trajectory
from rollart_flow.types.exchanges import StoredExchange
from rollart_flow.types.verdicts import Verdict, VerdictSource
from rollart_flow.verdict_rows import verdict_from_row

_AT_ONCE = 64
"""Attempts that are in memory at once."""


def read_attempt(run: Run, trajectory_id: str) -> tuple[list[Trajectory], Trajectory]:
    """Return (all branches of the attempt in the order in which they began, the trajectory).

    Branch 0 has the verdicts of the environment and the calls of a captured agent.

    Raises:
        SettingsError: there is no such trajectory.
    """
    ids = pl.col("trajectory_id")
    found = run.trajectories.filter(ids == trajectory_id).select("episode_id").head(1).collect()
    if not len(found):
        raise SettingsError(f"no trajectory {trajectory_id!r} in run {run.info.name}")
    (attempt,) = _attempts(run, [found.item()])
    attempt[0] = replace(attempt[0], verdicts=_verdicts(run, attempt[0].trajectory_id))
    return attempt, next(each for each in attempt if each.trajectory_id == trajectory_id)


def captured_attempts(run: Run) -> Iterator[list[Trajectory]]:
    """Yield the branches of each attempt of a captured agent, in the order of their commits."""
    names = run.exchanges.group_by("episode_id").agg(pl.col("seq").min()).sort("seq").collect()
    episodes = names["episode_id"].to_list()
    for start in range(0, len(episodes), _AT_ONCE):
        yield from _attempts(run, episodes[start : start + _AT_ONCE])


def _attempts(run: Run, episode_ids: Sequence[str]) -> list[list[Trajectory]]:
    """Return the branches of some attempts, each with its images, in the given order."""
    mine = pl.col("episode_id").is_in(list(episode_ids))
    rows = run.trajectories.filter(mine).sort("seq").collect().unique("trajectory_id", keep="first")
    calls = _calls(run, mine)
    attempts: dict[str, list[Trajectory]] = {name: [] for name in episode_ids}
    for row in rows.to_dicts():
        attempts[row["episode_id"]].append(_with_files(run, trajectory_from_row(row)))
    for name, branches in attempts.items():
        branches.sort(key=lambda each: each.branch)
        if name in calls and branches:
            branches[0] = replace(branches[0], exchanges=tuple(calls[name].values()))
    return [branches for branches in attempts.values() if branches]


def _calls(run: Run, mine: pl.Expr) -> Mapping[str, dict[int, StoredExchange]]:
    """Return the calls of attempts by their number, by attempt."""
    found: dict[str, dict[int, StoredExchange]] = {}
    rows: list[dict[str, Any]] = run.exchanges.filter(mine).sort("seq").collect().to_dicts()
    for row in rows:
        found.setdefault(row["episode_id"], {}).setdefault(row["number"], exchange_from_row(row))
    return {name: dict(sorted(calls.items())) for name, calls in found.items()}


def _verdicts(run: Run, trajectory_id: str) -> tuple[Verdict, ...] | None:
    """Return the verdicts of the environment, which reward functions see."""
    own = pl.col("trajectory_id") == trajectory_id, pl.col("source") == VerdictSource.ENVIRONMENT
    rows = run.verdicts.filter(*own).sort("seq").collect()
    return tuple(map(verdict_from_row, rows.to_dicts())) or None


def _with_files(run: Run, trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with the files of its images."""
    if trajectory.images is None:
        return trajectory
    images = {image: run.image(image.image_id) for image in trajectory.images}
    return replace(trajectory, images=tuple(images[image] for image in trajectory.images))
