"""What schedules promise of the batches that are trained on: checks, each for one promise.

A check is asked about batches after the fact, by tests and by whoever proves a run; it decides
nothing while the run goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.types import Batch

Check = Callable[[Bound, Batch], str | None]
"""None where the batch keeps the promise, else what is wrong with it."""

OrderCheck = Callable[[Sequence[Batch]], Iterable[str]]
"""What is wrong with the order of all batches of a run, one line each."""


def within_bound(bound: Bound, batch: Batch) -> str | None:
    """No trajectory is older than the bound while `batch.policy_version` is served."""
    for trajectory_id, age in zip(batch.trajectory_ids, batch.staleness, strict=True):
        if bound.is_stale(batch.policy_version, batch.policy_version - age):
            return f"step {batch.step}: trajectory {trajectory_id} is {age} versions old"
    return None


def served_at_most_one_behind(bound: Bound, batch: Batch) -> str | None:
    """The engines served the trained weights or, in the overlap, those before them."""
    behind = batch.trained_version - batch.policy_version
    if batch.trained_version == batch.step - 1 and 0 <= behind <= 1:
        return None
    return (
        f"step {batch.step}: formed while version {batch.policy_version} was served, "
        f"trained from version {batch.trained_version}"
    )


def on_policy(bound: Bound, batch: Batch) -> str | None:
    """Every trajectory was started by the very weights that the step trains."""
    if batch.policy_version == batch.trained_version == batch.step - 1 and not any(batch.staleness):
        return None
    return (
        f"step {batch.step}: staleness {max(batch.staleness)} with version "
        f"{batch.policy_version} served, where all must be version {batch.step - 1}"
    )


@dataclass(frozen=True, slots=True)
class NoneOvertakenByMore:
    """No group is trained on after one that was admitted more than `width` groups later."""

    width: int

    def __call__(self, batches: Sequence[Batch]) -> Iterable[str]:
        """What is wrong with the order, one line each."""
        newest = -1
        for batch in sorted(batches, key=lambda batch: batch.step):
            places = {group_id: group_cursor(group_id) for group_id in batch.group_ids}
            for group_id, place in places.items():
                if newest - place > self.width:
                    yield f"step {batch.step}: group {group_id} was overtaken by {newest - place}"
            newest = max(newest, *places.values())
