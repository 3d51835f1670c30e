"""Two pure decisions that a schedule may exchange: what is admitted, and what is trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """What the scheduler knows when it asks whether one more group may be opened."""

    held: int
    """Groups that hold a credit."""
    limit: int
    """Credits: capacity of the bound in groups, and extra groups."""
    next_position: int
    """Position that the new group would take in the order of admission, from 0."""
    oldest_position: int
    """Position of the oldest group that lacks members; `next_position` where none does."""


Admit = Callable[[AdmissionState], bool]


def by_credits(state: AdmissionState) -> bool:
    """A group is opened while a credit is free (ROLL Flash section 4.3: (1 + alpha) x batch)."""
    return state.held < state.limit


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A complete, fresh group in the buffer."""

    group_id: str
    start: int
    """Policy version that started its oldest member."""
    position: int
    """Position in the order in which groups became complete."""


Select = Callable[[Sequence[ReadyGroup], int], Sequence[ReadyGroup] | None]
"""(ready groups in order of completion, number needed) -> exactly that many, or None: wait."""


def oldest_first(ready: Sequence[ReadyGroup], needed: int) -> Sequence[ReadyGroup] | None:
    """Those closest to becoming stale, then those that were complete first."""
    if len(ready) < needed:
        return None
    return sorted(ready, key=lambda group: (group.start, group.position))[:needed]
