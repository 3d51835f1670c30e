"""The gate of the stream of tasks, which lets through those that checks have admitted.

A run uses the checks that its own table `admissions` has since it began, so that the n-th task is
the same after a restart. A task that is not admitted keeps its number in the stream.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rollart_flow.envs.base import Domain
from rollart_flow.errors import RunFailedError
from rollart_flow.store import Run
from rollart_flow.store.admissions import Key, key_of, newest
from rollart_flow.types import Event, EventKind, Task
from rollart_flow.types.verdicts import Admitted

COMMAND = "rollart tasks check"
_MOST = 10_000
"""Tasks that are passed over in a row before the run fails, since none may ever be admitted."""
_NOTED = 1_000
"""Tasks that are passed over in a row before an event says so."""
_REMEMBERED = 100_000
"""Tasks that were passed over and are remembered, so that an event counts each once."""


def admission_of(domain: Domain, admitted: Admitted | None) -> Admitted:
    """Return the rule by which tasks of a domain are trained on, under a pipeline's setting."""
    return admitted or ("required" if domain.needs_admission else "known")


def run_admissions(run: str) -> list[dict[str, Any]]:
    """Rows of the table `admissions` of a run, the newest of each key.

    Raises:
        StoreError: the table cannot be read.
    """
    return newest(Run(run).admissions.collect()).to_dicts()


def from_thread(
    loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None]
) -> Callable[[Event], None]:
    """Return a function that emits an event from another thread; a closed loop gets none."""

    def call(event: Event) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(emit, event)

    return call


class TaskGate:
    """Passes over tasks that are not admitted; events count each of them once.

    Args:
        domains: domains that run the tasks.
        admitted: setting of the pipeline.
        read: returns rows of `admissions`; called before the first task passes.
        emit: records an event; called in the thread that draws tasks.
    """

    def __init__(
        self,
        domains: Iterable[Domain],
        admitted: Admitted | None,
        read: Callable[[], Iterable[Mapping[str, Any]]],
        emit: Callable[[Event], None],
    ) -> None:
        self._domains = {domain.name: domain for domain in domains}
        self._modes = {domain.name: admission_of(domain, admitted) for domain in domains}
        self._read = read
        self._emit = emit
        self._reasons: dict[Key, str | None] = {}
        """Why a checked task is not admitted, or None if it is."""
        self._checked: set[str] = set()
        """Names of the domains with a check."""
        self._noted: set[Task] = set()
        """Tasks of which an event says that they were passed over."""

    def admitted(self, tasks: Iterator[tuple[Task, int]]) -> Iterator[tuple[Task, int]]:
        """Yield the (task, number) pairs of admitted tasks.

        Raises:
            RunFailedError: too many tasks in a row are not admitted.
        """
        if all(mode == "any" for mode in self._modes.values()):
            yield from tasks
            return
        for row in self._read():
            self._reasons[key_of(row)] = None if row["admitted"] else str(row["reason"])
            self._checked.add(row["domain"])
        passed_over: list[tuple[Task, str]] = []
        row_of_refused = 0
        for task, place in tasks:
            reason = self.refusal(task)
            if reason is None:
                self._note(passed_over, place)
                row_of_refused = 0
                yield task, place
                continue
            if task not in self._noted:
                passed_over.append((task, reason))
                self._noted.add(task)
            row_of_refused += 1
            if row_of_refused == _MOST:
                raise RunFailedError(
                    f"tasks: none of {_MOST} tasks in a row is admitted, such as {task.task_id}: "
                    f"{reason}; run `{COMMAND} FILE`, and begin a new run"
                )
            if len(passed_over) == _NOTED:
                self._note(passed_over, place)

    def refusal(self, task: Task) -> str | None:
        """Return why a task is not admitted; None if it is."""
        mode = self._modes.get(task.domain, "any")
        if mode == "any" or (mode == "known" and task.domain not in self._checked):
            return None
        digests = self._domains[task.domain].digests(task)
        key = (task.domain, digests.task, digests.image, digests.verifier)
        unchecked = None if mode == "known" else f"`{COMMAND}` has not checked it"
        return self._reasons.get(key, unchecked)

    def _note(self, passed_over: list[tuple[Task, str]], place: int) -> None:
        """Record tasks that were first passed over before a place of the stream, by domain."""
        for domain, count in Counter(task.domain for task, _ in passed_over).items():
            mine = [(task, reason) for task, reason in passed_over if task.domain == domain]
            first, reason = mine[0]
            detail = {"tasks": count, "before": place, "first": first.task_id, "why": reason}
            self._emit(Event(EventKind.REFUSE, "tasks", domain=domain, detail=detail))
        passed_over.clear()
        if len(self._noted) > _REMEMBERED:
            self._noted.clear()
