"""Checks of the invariants that schedules guarantee for trained batches, one check per invariant.

Tests and verification tools apply the checks afterwards; checks decide nothing during a run.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.text import counted
from rollart_flow.types import Batch

Check = Callable[[Bound, Batch], str | None]
"""Check that returns None if the batch satisfies the invariant, else a description."""

OrderCheck = Callable[[Sequence[Batch]], Iterable[str]]
"""Check that yields the violations in the order of all batches of a run, one line each."""


def within_bound(bound: Bound, batch: Batch) -> str | None:
    """Check that no trajectory is older than the bound, which counts staleness or lag."""
    newest = bound.reference(batch.policy_version, batch.trained_version)
    for trajectory_id, staleness in zip(batch.trajectory_ids, batch.staleness, strict=True):
        start = batch.policy_version - staleness
        if bound.is_stale(newest, start):
            age = counted(newest - start, "version")
            return f"step {batch.step}: trajectory {trajectory_id} is {age} old"
    return None


def served_what_is_trained(bound: Bound, batch: Batch) -> str | None:
    """Check that the engines served the trained weights, so that staleness and lag are equal."""
    if batch.policy_version == batch.trained_version == batch.step - 1:
        return None
    return _served_another(batch)


def served_at_most_one_behind(bound: Bound, batch: Batch) -> str | None:
    """Check that the engines served the trained weights or, with overlap, the previous ones."""
    behind = batch.trained_version - batch.policy_version
    if batch.trained_version == batch.step - 1 and 0 <= behind <= 1:
        return None
    return _served_another(batch)


def _served_another(batch: Batch) -> str:
    return (
        f"step {batch.step}: formed while version {batch.policy_version} was served, "
        f"trained from version {batch.trained_version}"
    )


def on_policy(bound: Bound, batch: Batch) -> str | None:
    """Check that every trajectory was started by the weights that the step trains."""
    if batch.policy_version == batch.trained_version == batch.step - 1 and not any(batch.staleness):
        return None
    return (
        f"step {batch.step}: staleness {max(batch.staleness)} with version "
        f"{batch.policy_version} served, where all must be version {batch.step - 1}"
    )


@dataclass(frozen=True, slots=True)
class NoneOvertakenByMore:
    """Check that no group is trained on after one admitted more than `width` groups later."""

    width: int

    def __call__(self, batches: Sequence[Batch]) -> Iterable[str]:
        """Yield the violations, one line each."""
        newest = -1
        for batch in sorted(batches, key=lambda batch: batch.step):
            places = {group_id: group_cursor(group_id) for group_id in batch.group_ids}
            for group_id, place in places.items():
                if newest - place > self.width:
                    yield f"step {batch.step}: group {group_id} was overtaken by {newest - place}"
            newest = max(newest, *places.values())
