"""Verdicts as rows of the table `verdicts`, and back.

The invariant: one source has one row for each kind and key of a trajectory. Rows of a trajectory
are adjacent, in the order of the verdicts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from rollart_flow.schema import to_table
from rollart_flow.types import Trajectory
from rollart_flow.types.verdicts import Verdict, VerdictKind, VerdictSource

_FIELDS = ("key", "kind", "passed", "value", "seconds", "message")


def verdicts_table(trajectories: Iterable[Trajectory]) -> pa.Table | None:
    """Uncommitted rows of `verdicts`: what the environment said, and each part of the reward.

    A reward of one part has no row of it unless something was said of it: `reward_parts` has its
    value, and the commit of one more table takes as long as that of the trajectories. None if there
    are no rows: then nothing has to be written.
    """
    rows = [row for each in trajectories if _judged(each) for row in _rows(each)]
    return to_table("verdicts", rows) if rows else None


def judged_rows(
    trajectory: Mapping[str, Any] | Trajectory,
    verdicts: Sequence[Verdict],
    *,
    source: str,
    judged_at: datetime,
    verifier: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of verdicts on one trajectory, as mappings.

    Args:
        trajectory: the trajectory, or a row of `trajectories` with its id, task and domain.
        verdicts: verdicts of one source.
        source: what judged.
        judged_at: when it judged (UTC).
        verifier: digest of the verifier.
    """
    names = ("trajectory_id", "task_id", "domain")
    if isinstance(trajectory, Trajectory):
        whose = {name: getattr(trajectory, name) for name in names}
    else:
        whose = {name: trajectory[name] for name in names}
    whose |= {"source": source, "judged_at": judged_at, "verifier": verifier}
    for verdict in verdicts:
        yield whose | {name: getattr(verdict, name) for name in _FIELDS}


def verdict_from_row(row: Mapping[str, Any]) -> Verdict:
    """A `Verdict` from one row as a mapping."""
    return Verdict.from_json({name: row[name] for name in _FIELDS})


def _judged(trajectory: Trajectory) -> bool:
    said = trajectory.verdicts or trajectory.reward_verdicts
    return bool(said or len(trajectory.reward_parts or ()) > 1) and trajectory.branch == 0


def _rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    yield from judged_rows(
        trajectory,
        trajectory.verdicts or (),
        source=VerdictSource.ENVIRONMENT,
        judged_at=trajectory.finished_at,
        verifier=trajectory.verifier,
    )
    yield from judged_rows(
        trajectory,
        _of_reward(trajectory),
        source=VerdictSource.REWARD,
        judged_at=trajectory.scored_at or trajectory.finished_at,
    )


def _of_reward(trajectory: Trajectory) -> list[Verdict]:
    """Parts of the reward, with what the reward function says of them, and its other verdicts."""
    given = {(each.kind, each.key): each for each in trajectory.reward_verdicts or ()}
    parts = trajectory.reward_parts or {}
    for name, value in parts.items():
        place = VerdictKind.REWARD, name
        if len(parts) == 1 and place not in given:
            break
        said = given.get(place) or Verdict(key=name, kind=VerdictKind.REWARD)
        given[place] = replace(said, value=value)
    return list(given.values())
