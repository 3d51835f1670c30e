"""Atomic weights: what every token is drawn with is what the controller says is served."""

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from rollart_flow.types import Chunk, Event

_NAME = "atomic weights"

Violated = Callable[[str, str], NoReturn]
"""Ends the run: (invariant, what broke it)."""


class Worker(Protocol):
    """An engine, as far as it is watched."""

    worker: str
    version: int
    suspended: bool
    serves: bool

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        ...


class Serving:
    """The version that all engines serve."""

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._version = 0
        self._workers: Sequence[Worker] = ()

    def serves(self, version: int, workers: Sequence[Worker]) -> None:
        """All of these hold a version now."""
        self._version = version
        self._workers = workers

    def drew(self, worker: Worker, chunk: Chunk) -> None:
        """A chunk: of one version, the served one, by an engine that may draw."""
        if worker.suspended or not worker.serves:
            self._violated(_NAME, f"{worker.worker} drew {chunk.request_id} while suspended")
        if any(version != self._version for version in chunk.versions):
            self._violated(
                _NAME,
                f"{worker.worker} drew {chunk.request_id} with {set(chunk.versions)} "
                f"while version {self._version} is served",
            )

    def loading(self, worker: Worker, version: int, published: int) -> None:
        """Weights change only while suspended, and to a version that is published."""
        if not worker.suspended:
            self._violated(_NAME, f"{worker.worker} swaps to version {version} while it draws")
        if version > published:
            self._violated(_NAME, f"{worker.worker} swaps to version {version}, of {published}")

    def resumed(self, event: Event) -> None:
        """Every engine that serves holds what the controller says."""
        for worker in self._workers:
            held = worker.version
            if worker.alive and worker.serves and held != event.policy_version:
                self._violated(
                    _NAME,
                    f"{worker.worker} holds version {held} after version "
                    f"{event.policy_version} was resumed",
                )
