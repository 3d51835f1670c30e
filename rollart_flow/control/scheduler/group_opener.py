"""GroupOpener: opens groups for tasks as the admission rule allows, and hands out their attempts.

A schedule may have groups opened ahead of their admission, whose environments are reset meanwhile.
The invariants: groups are admitted in the order of their positions; when one more group is opened
ahead, there is room for its attempts beside all others in flight.
"""

from collections.abc import Iterator

from rollart_flow.control.ids import group_name
from rollart_flow.control.schedule.selection import AdmissionState, Admit
from rollart_flow.control.scheduler.admission_queue import TaskSource
from rollart_flow.control.scheduler.group_registry import GroupRegistry
from rollart_flow.control.scheduler.lifecycle import GroupLifecycle
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import RunFailedError
from rollart_flow.text import counted
from rollart_flow.types import Assignment, Task

_MOST_SKIPPED = 100_000
"""Tasks in quarantine in a row after which the run fails."""


class GroupOpener:
    """Opens groups, one for each task.

    Args:
        tasks: see `RolloutScheduler`.
        admission: decides whether one more group may be opened.
        registry: groups that were opened so far.
        lifecycle: the opened groups are handed to it.
        settings: sizes of groups and batches, and how many environments there may be.
        limit: largest number of groups that may hold a credit.
        ahead: largest number of attempts whose group is opened ahead of its admission.
    """

    def __init__(
        self,
        tasks: Iterator[tuple[Task, int] | None],
        admission: Admit,
        registry: GroupRegistry,
        lifecycle: GroupLifecycle,
        settings: RolloutSettings,
        *,
        limit: int,
        ahead: int,
    ) -> None:
        self._tasks = TaskSource(tasks)
        self._admission = admission
        self._registry = registry
        self._lifecycle = lifecycle
        self._limit = limit
        self._needed = settings.groups_per_batch
        self._launched = settings.launched
        self._ahead = ahead // settings.launched
        self._room = limit * settings.launched + settings.extra_environments

    def admit(self) -> None:
        """Admit groups that were opened ahead, the oldest first, while the rule allows it."""
        while self._registry.ahead:
            oldest = next(iter(self._registry.ahead.values()))
            if not self._admits(oldest.position):
                return
            self._lifecycle.admit(oldest)

    def _admits(self, position: int) -> bool:
        registry = self._registry
        return self._admission(
            AdmissionState(
                held=len(registry.credits),
                limit=self._limit,
                next_position=position,
                oldest_position=registry.oldest_position,
            )
        )

    def _room_ahead(self) -> bool:
        """Whether one more group may be opened ahead."""
        registry = self._registry
        in_flight = len(registry.attempts) + self._launched
        return len(registry.ahead) < self._ahead and in_flight <= self._room

    def take(self, source: str, most: int) -> tuple[Assignment, ...]:
        """Assign the attempts that may start now to a source, and open groups for them.

        Args:
            source: name of the source.
            most: largest number of attempts.

        Raises:
            RunFailedError: the tasks failed, or ended before the groups of a batch were there.
        """
        taken: list[Assignment] = []
        while len(taken) < most:
            attempt = self._registry.take(source)
            if attempt is not None:
                taken.append(attempt.assignment)
            elif not self._open():
                break
        return tuple(taken)

    def _open(self) -> bool:
        """Open one group, ahead of its admission if it has to wait for that; False if none may be
        opened now, or there is no task for it."""
        registry = self._registry
        ahead = bool(registry.ahead) or not self._admits(registry.next_position)
        if ahead and not self._room_ahead():
            return False
        taken = self._next_task()
        if taken is None:
            left = len(registry.credits) + len(registry.ahead)
            if self._tasks.exhausted and left < self._needed:
                raise RunFailedError(
                    f"the tasks ended after {counted(registry.next_position, 'group')}, with "
                    f"{left} left for a batch of {self._needed}; "
                    "give more tasks or train fewer steps"
                )
            return False
        task, cursor = taken
        self._lifecycle.open(group_name(cursor), task, ahead=ahead)
        return True

    def _next_task(self) -> tuple[Task, int] | None:
        """Return the next task that is not in quarantine, with its cursor, or None."""
        for _ in range(_MOST_SKIPPED):
            taken = self._tasks.take()
            if taken is None or taken[0].task_id not in self._registry.quarantined:
                return taken
        raise RunFailedError(
            f"the next {_MOST_SKIPPED} tasks are in quarantine; see events of kind quarantine"
        )
