"""Schedules: in which order a training step's phases run, and what is promised for it.

A schedule is data. The AsyncController runs its `order`, the scheduler and the buffer ask its
`bound`, `admission` and `selection`, so that another schedule is another composition of pure
functions and no other class. Each declares its invariant: `violations` finds the batches that
break it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from rollart_flow.control.selection import Admit, Select, by_credits, oldest_first
from rollart_flow.control.staleness import Bound, StalenessPolicy
from rollart_flow.types import Batch


class Phase(StrEnum):
    """What a training step consists of, seen from the control plane."""

    GET_BATCH = "get_batch"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    TRAIN = "train"


Check = Callable[[Bound, Batch], str | None]
"""None where the batch keeps the promise, else what is wrong with it."""

SIX_STEPS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.UPDATE, Phase.RESUME, Phase.TRAIN)
"""ROLLART section 6.2; the fifth, recompute, happens in the engines when they resume."""

SYNCHRONOUS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.TRAIN, Phase.UPDATE, Phase.RESUME)
"""ROLL Flash section 4.2: suspended right after get_batch, so that all that follows is new."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to interleave rollout and training."""

    name: str
    order: tuple[Phase, ...]
    """What comes before TRAIN runs in `next_batch`, what comes after it in `trained`."""
    bound: Bound
    checks: tuple[Check, ...]
    """The invariant: each must hold for each batch."""
    admission: Admit = by_credits
    """Whether one more group may be opened."""
    selection: Select = oldest_first
    """Which complete groups form a batch."""

    @property
    def before_training(self) -> tuple[Phase, ...]:
        """Phases between GET_BATCH and TRAIN."""
        return self.order[1 : self.order.index(Phase.TRAIN)]

    @property
    def after_training(self) -> tuple[Phase, ...]:
        """Phases after TRAIN."""
        return self.order[self.order.index(Phase.TRAIN) + 1 :]

    def violations(self, batches: Iterable[Batch]) -> tuple[str, ...]:
        """What is wrong with batches, one line each; empty where the invariant holds."""
        found = (check(self.bound, batch) for batch in batches for check in self.checks)
        return tuple(line for line in found if line is not None)


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


def rollart(alpha: float | Fraction = 1) -> Schedule:
    """The six-step protocol of ROLLART section 6.2; with alpha 0 it is `sync()`.

    Training of step k overlaps rollout under version k - 1.

    Raises:
        SettingsError: alpha is negative or not a finite number.
    """
    bound = StalenessPolicy(alpha)
    if bound.bound == 0:
        return sync()
    return Schedule(
        f"rollart(alpha={float(alpha):g})",
        SIX_STEPS,
        bound,
        (within_bound, served_at_most_one_behind),
    )


def sync() -> Schedule:
    """Synchronous training: the engines are suspended while the step trains."""
    return Schedule("sync", SYNCHRONOUS, StalenessPolicy(0), (within_bound, on_policy))
