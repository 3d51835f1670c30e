"""Two pure decisions that a schedule may exchange: what is admitted, and what is trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor


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
class WithinWindow:
    """By credits, and no further than `width` groups beyond the oldest one that lacks members.

    The sliding window [H, H + W] of Forge: what starts outside it would finish, and be trained on,
    before a slow group at its head.
    """

    width: int

    def __call__(self, state: AdmissionState) -> bool:
        """Whether one more group may be opened."""
        inside = state.next_position - state.oldest_position <= self.width
        return inside and by_credits(state)


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


def in_order(ready: Sequence[ReadyGroup], needed: int) -> Sequence[ReadyGroup] | None:
    """Those closest to becoming stale, then those that were admitted first.

    Every batch has the tasks in the order of their source, long ones like short ones, so that one
    takes as long to train as the next.
    """
    if len(ready) < needed:
        return None
    return sorted(ready, key=lambda g: (g.start, group_cursor(g.group_id)))[:needed]


def first_completed(ready: Sequence[ReadyGroup], needed: int) -> Sequence[ReadyGroup] | None:
    """Those that were complete first, however old."""
    return None if len(ready) < needed else sorted(ready, key=lambda g: g.position)[:needed]
