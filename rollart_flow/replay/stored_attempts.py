"""The attempts of a run as they were committed: branches with images, verdicts and calls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from rollart_flow.episodes import whole
from rollart_flow.errors import SettingsError
from rollart_flow.exchange_rows import exchange_from_row
from rollart_flow.rows import trajectory_from_row
from rollart_flow.store import Run
from rollart_flow.types import Trajectory
from rollart_flow.types.exchanges import StoredExchange
from rollart_flow.types.trajectories import unscored
from rollart_flow.types.verdicts import Verdict, VerdictSource
from rollart_flow.verdict_rows import verdict_from_row

_AT_ONCE = 64
"""Attempts that are in memory at once."""


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """An attempt as the reward function of its run saw it."""

    seen: Trajectory
    """All branches as one trajectory, without a reward."""
    reward: float | None
    """The reward that the run gave it."""


def attempts_to_score(run: Run, episodes: pl.DataFrame) -> list[StoredAttempt]:
    """Return some attempts as reward functions see them.

    Args:
        run: their run.
        episodes: a row for each of them: `episode_id`, and the `first` and `last` seq of its rows.
    """
    first, last = episodes["first"].min(), episodes["last"].max()
    attempts = _attempts(
        run, episodes["episode_id"].to_list(), pl.col("seq").is_between(first, last)
    )
    said = _environment_verdicts(run, [branches[0].trajectory_id for branches in attempts])
    found = []
    for branches in attempts:
        branches[0] = replace(branches[0], verdicts=said.get(branches[0].trajectory_id))
        found.append(StoredAttempt(unscored(whole(branches)), branches[0].reward))
    return found


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
    first = attempt[0].trajectory_id
    attempt[0] = replace(attempt[0], verdicts=_environment_verdicts(run, [first]).get(first))
    return attempt, next(each for each in attempt if each.trajectory_id == trajectory_id)


def captured_attempts(run: Run) -> Iterator[list[Trajectory]]:
    """Yield the branches of each attempt of a captured agent, in the order of their commits."""
    names = run.exchanges.group_by("episode_id").agg(pl.col("seq").min()).sort("seq").collect()
    episodes = names["episode_id"].to_list()
    for start in range(0, len(episodes), _AT_ONCE):
        yield from _attempts(run, episodes[start : start + _AT_ONCE])


def _attempts(
    run: Run, episode_ids: Sequence[str], place: pl.Expr | None = None
) -> list[list[Trajectory]]:
    """Return the branches of some attempts, each with its images, in the given order.

    Args:
        run: their run.
        episode_ids: their episodes.
        place: further condition that their rows meet, by which files are passed over.
    """
    mine = pl.col("episode_id").is_in(list(episode_ids))
    at = run.trajectories if place is None else run.trajectories.filter(place)
    rows = at.filter(mine).sort("seq").collect().unique("trajectory_id", keep="first")
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


def _environment_verdicts(run: Run, ids: Sequence[str]) -> dict[str, tuple[Verdict, ...]]:
    """Return the verdicts of the environment, which reward functions see, by trajectory."""
    own = pl.col("trajectory_id").is_in(list(ids)), pl.col("source") == VerdictSource.ENVIRONMENT
    found: dict[str, tuple[Verdict, ...]] = {}
    for row in run.verdicts.filter(*own).sort("seq").collect().to_dicts():
        before = found.get(row["trajectory_id"], ())
        found[row["trajectory_id"]] = (*before, verdict_from_row(row))
    return found


def _with_files(run: Run, trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with the files of its images."""
    if trajectory.images is None:
        return trajectory
    images = {image: run.image(image.image_id) for image in trajectory.images}
    return replace(trajectory, images=tuple(images[image] for image in trajectory.images))
