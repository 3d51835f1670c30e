"""Atomic weights: engines sample every token with the version that the controller serves."""

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from rollart_flow.types import Chunk, Event

_NAME = "atomic weights"

Violated = Callable[[str, str], NoReturn]
"""Ends the run: (invariant, what broke it)."""


class Worker(Protocol):
    """The state of an engine that is watched."""

    worker: str
    version: int
    suspended: bool
    serves: bool

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        ...


class Serving:
    """Checks that all engines serve one version."""

    def __init__(self, violated: Violated) -> None:
        self._violated = violated
        self._version = 0
        self._workers: Sequence[Worker] = ()

    def serves(self, version: int, workers: Sequence[Worker]) -> None:
        """Apply a version that all workers hold now."""
        self._version = version
        self._workers = workers

    def sampled(self, worker: Worker, chunk: Chunk) -> None:
        """Check that a chunk is of the served version alone, by an engine that may sample."""
        if worker.suspended or not worker.serves:
            self._violated(_NAME, f"{worker.worker} sampled {chunk.request_id} while suspended")
        if any(version != self._version for version in chunk.versions):
            self._violated(
                _NAME,
                f"{worker.worker} sampled {chunk.request_id} with {set(chunk.versions)} "
                f"while version {self._version} is served",
            )

    def loading(self, worker: Worker, version: int, published: int) -> None:
        """Check that weights change only while suspended, and to a published version."""
        if not worker.suspended:
            self._violated(_NAME, f"{worker.worker} swaps to version {version} while it samples")
        if version > published:
            self._violated(
                _NAME, f"{worker.worker} swaps to version {version}, but {published} is published"
            )

    def resumed(self, event: Event) -> None:
        """Check that every serving engine holds the version that the controller resumed."""
        for worker in self._workers:
            held = worker.version
            if worker.alive and worker.serves and held != event.policy_version:
                self._violated(
                    _NAME,
                    f"{worker.worker} holds version {held} after version "
                    f"{event.policy_version} was resumed",
                )
