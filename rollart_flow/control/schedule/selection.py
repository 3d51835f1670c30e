"""Pure functions of a schedule for the admission of groups and the selection of batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollart_flow.control.ids import group_cursor


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """State of the scheduler for the decision whether one more group may be opened."""

    held: int
    """Number of groups that hold a credit."""
    limit: int
    """Number of credits: capacity of the bound in groups, plus extra groups."""
    next_position: int
    """Position that the new group would take in the order of admission, from 0."""
    oldest_position: int
    """Position of the oldest group that lacks members, or `next_position` if none does."""


Admit = Callable[[AdmissionState], bool]


def by_credits(state: AdmissionState) -> bool:
    """Admit a group while a credit is free (ROLL Flash section 4.3: (1 + alpha) x batch)."""
    return state.held < state.limit


@dataclass(frozen=True, slots=True)
class WithinWindow:
    """Admission by credits, at most `width` groups beyond the oldest one that lacks members.

    The window is the sliding window [H, H + W] of Forge: a group that started outside it could
    finish and be trained on before a slow group at its head.
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
"""(ready groups in order of completion, number needed) -> exactly that many, or None to wait."""


def oldest_first(ready: Sequence[ReadyGroup], needed: int) -> Sequence[ReadyGroup] | None:
    """Select the groups closest to becoming stale, then those that were complete first."""
    if len(ready) < needed:
        return None
    return sorted(ready, key=lambda group: (group.start, group.position))[:needed]


def in_order(ready: Sequence[ReadyGroup], needed: int) -> Sequence[ReadyGroup] | None:
    """Select the groups closest to becoming stale, then those that were admitted first.

    Batches take the tasks, long and short ones, in the order of their source, so that all batches
    take about equally long to train.
    """
    if len(ready) < needed:
        return None
    return sorted(ready, key=lambda g: (g.start, group_cursor(g.group_id)))[:needed]


def first_completed(ready: Sequence[ReadyGroup], needed: int) -> Sequence[ReadyGroup] | None:
    """Select the groups that were complete first, regardless of age."""
    return None if len(ready) < needed else sorted(ready, key=lambda g: g.position)[:needed]
