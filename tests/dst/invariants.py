"""Invariants of rows and batches, checked on the tables alone; each function returns the faults."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rollart_flow.control.schedule.staleness import Bound, LagBound, StalenessPolicy, StartBound
from rollart_flow.types import TRAINABLE, AttemptLimits, Batch, Trajectory
from tests.dst.environments import DAWN
from tests.dst.plans import Plan

_EPSILON_S = 1e-6
_PERMISSION_S = 30.0
"""Longest wait for the permission to start, without outages of the scheduler."""


def is_good(branches: Sequence[Trajectory]) -> bool:
    """Whether an episode can be trained on, judged independently of the product's code."""
    row = branches[0]
    scored = row.reward is not None and math.isfinite(row.reward)
    sampled = any(True in each.action_mask for each in branches)
    return row.outcome in TRAINABLE and scored and sampled


def incomplete(branches: Sequence[Trajectory]) -> str | None:
    """What is missing or different in the rows of an episode; None if nothing is."""
    first = branches[0]
    if [row.branch for row in branches] != list(range(len(branches))):
        return f"its rows are the branches {[row.branch for row in branches]}"
    names = {first.trajectory_id: first}
    for row in branches[1:]:
        same = ("episode_id", "group_id", "attempt", "outcome", "reason", "reward")
        if any(getattr(row, name) != getattr(first, name) for name in same):
            return f"{row.trajectory_id} differs from branch 0"
        parent = names.get(row.parent or "")
        if parent is None:
            return f"{row.trajectory_id} came from {row.parent}, which is no branch before it"
        shared = row.shared_tokens
        if row.token_ids[:shared] != parent.token_ids[:shared] or any(row.action_mask[:shared]):
            return f"the first {shared} tokens of {row.trajectory_id} are not its parent's"
        if row.messages is not None and not any(row.action_mask):
            return f"{row.trajectory_id} has no action"
        names[row.trajectory_id] = row
    return None


def overtime(
    row: Trajectory, limits: AttemptLimits, outage_s: float, admitted_s: float | None = None
) -> str | None:
    """The part of a row that took longer than its limits, outages aside; None if none did."""
    steps_s = max((turn.step_s for turn in row.turns), default=0.0)
    if max(row.reset_s, steps_s) > limits.step_timeout_s + _EPSILON_S:
        return f"reset took {row.reset_s:.3f} s, a step {steps_s:.3f} s"
    return overstay(row, limits.trajectory_timeout_s + outage_s, admitted_s)


def overstay(row: Trajectory, longest_s: float, admitted_s: float | None = None) -> str | None:
    """How long a row took, if that is longer than a limit and the wait for the permission.

    Args:
        row: the row.
        longest_s: the limit.
        admitted_s: time at which its group was admitted, if its environment was reset ahead of
            that; infinite if it never was.
    """
    seconds = (row.finished_at - row.created_at).total_seconds()
    if admitted_s is not None:  # it waited, and for a message beside its permission
        waited = min(seconds, max(0.0, admitted_s - (row.created_at - DAWN).total_seconds()))
        seconds -= waited + _PERMISSION_S
    return f"it took {seconds:.3f} s" if seconds > longest_s + _PERMISSION_S else None


def batch_faults(
    plan: Plan, batch: Batch, episodes: Mapping[str, Sequence[Trajectory]]
) -> Iterator[str]:
    """Faults of a batch, which consists of whole groups of good episodes within the bound."""
    if len(batch.trajectory_ids) != plan.batch_size:
        yield f"{len(batch.trajectory_ids)} trajectories, not {plan.batch_size}"
    for group_id in dict.fromkeys(batch.group_ids):
        if (count := batch.group_ids.count(group_id)) != plan.group_size:
            yield f"group {group_id} has {count} members, not {plan.group_size}"
    if len(set(batch.trajectory_ids)) != len(batch.trajectory_ids):
        yield "a trajectory is in it twice"
    ages = zip(batch.staleness, batch.lag, strict=True)
    aligned = zip(batch.trajectory_ids, batch.group_ids, ages, strict=True)
    for trajectory_id, group_id, found in aligned:
        branches = episodes.get(trajectory_id)
        if branches is None:
            yield f"{trajectory_id} is not in the table"
        elif not is_good(branches):
            yield f"{trajectory_id} is {branches[0].outcome} with reward {branches[0].reward}"
        elif branches[0].group_id != group_id:
            yield f"{trajectory_id} is of {branches[0].group_id}, not of {group_id}"
        elif fault := _too_old(plan.schedule.bound, batch, branches, found):
            yield fault


def _too_old(
    bound: Bound, batch: Batch, branches: Sequence[Trajectory], ages: tuple[int, int]
) -> str | None:
    row = branches[0]
    start = min(
        version
        for each in branches
        for version, mask in zip(each.token_versions, each.action_mask, strict=True)
        if mask
    )
    age, lag = batch.policy_version - start, batch.step - 1 - start
    said = f"{row.trajectory_id} has a staleness of {age} and a lag of {lag} versions"
    if (age, lag) != ages:
        return f"{said}, the batch says {ages[0]} and {ages[1]}"
    if age < 0:
        return f"{row.trajectory_id} was started by version {start}, which was not served yet"
    bounded = lag if isinstance(bound, LagBound) else age
    if (most := oldest(bound)) is not None and bounded > most:
        return f"{said}, the bound is {bound}"
    return None


def oldest(bound: Bound) -> int | None:
    """Largest age that a bound allows [versions]; None if it allows any."""
    if isinstance(bound, StartBound) or not isinstance(bound, StalenessPolicy):
        return None
    return math.ceil(bound.alpha)
