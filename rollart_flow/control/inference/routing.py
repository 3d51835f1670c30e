"""Routing of requests: hardware class by domain, sticky by trajectory, then least load.

The router implements hardware affinity (ROLLART section 5) with fallback to any available class.
The classes are configured or found by a profiler. Requests that name a group go to that group's
worker instead (ROLL Flash section 5.1.2, without prompt replication). The invariant: a request is
routed as long as one worker is in use, and a domain's fallback is reported once.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rollart_flow.control.protocols import Emit, Inference
from rollart_flow.errors import EngineError, WorkerLeftError
from rollart_flow.types import Event, EventKind, GenerationRequest, Reason


class Affinity(Protocol):
    """Protocol that chooses a hardware class for each domain."""

    def wanted(self, domain: str) -> str | None:
        """Return the class of a domain; None means any class."""
        ...

    def place(self, domain: str) -> str | None:
        """Return the class for a new trajectory of a domain; None means any class."""
        ...

    def resize(self, hardware: Iterable[str]) -> None:
        """Set the classes of all workers in use, one entry for each worker."""
        ...


class FixedAffinity:
    """Fixed classes by domain, with "default" for the others; without it, they use any class."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self._classes = classes

    def wanted(self, domain: str) -> str | None:
        """Return the configured class of a domain; None means any class."""
        return self._classes.get(domain, self._classes.get("default"))

    def place(self, domain: str) -> str | None:
        """Return the configured class of a domain; None means any class."""
        return self.wanted(domain)

    def resize(self, hardware: Iterable[str]) -> None:
        """Ignore the workers in use, since the classes are fixed."""


class Router:
    """Places requests on workers; the load counts this client's requests in flight.

    Args:
        workers: inference workers.
        emit: receives events for fallbacks and lost workers.
        affinity: hardware class for each domain.
    """

    def __init__(self, workers: Iterable[Inference], emit: Emit, affinity: Affinity) -> None:
        self._emit = emit
        self._affinity = affinity
        self._workers = {worker.worker: worker for worker in workers}
        self._load: dict[str, int] = {}
        """Requests in flight by worker; idle workers are left out, since a run has many clients
        and each of them keeps only few workers busy."""
        self._placed: dict[str, str] = {}
        self._fallen_back: set[str] = set()
        self._fitting: dict[tuple[str, str | None], list[str]] = {}
        """Worker names by domain and class; cleared when a worker is added or removed."""
        self._resized()

    def __len__(self) -> int:
        """Number of workers in use."""
        return len(self._workers)

    def __contains__(self, name: str) -> bool:
        """Whether a worker of this name is in use."""
        return name in self._workers

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the workers in use."""
        return tuple(self._workers)

    def add(self, worker: Inference) -> None:
        """Add a worker."""
        self._workers[worker.worker] = worker
        self._resized()

    def remove(self, name: str) -> None:
        """Remove a worker."""
        self._workers.pop(name, None)
        self._resized()

    def _resized(self) -> None:
        self._fitting.clear()
        self._affinity.resize(worker.hardware for worker in self._workers.values())

    def lost(self, worker: Inference, error: Exception) -> None:
        """Remove a worker that died or left; a death is reported once."""
        if self._workers.get(worker.worker) is not worker:
            return
        self.remove(worker.worker)
        if not isinstance(error, WorkerLeftError):
            self._emit(
                Event(
                    EventKind.CRASH,
                    subject=worker.worker,
                    reason=Reason.WORKER_LOST,
                    detail={"hardware": worker.hardware, "error": str(error)},
                )
            )

    def begin(self, worker: Inference) -> None:
        """Count one more request in flight on a worker."""
        name = worker.worker
        self._load[name] = self._load.get(name, 0) + 1

    def end(self, worker: Inference) -> None:
        """Count one request in flight less on a worker."""
        name = worker.worker
        self._load[name] -= 1
        if not self._load[name]:
            del self._load[name]

    def release(self, trajectory_id: str) -> None:
        """Forget the placement of a trajectory."""
        self._placed.pop(trajectory_id, None)

    def route(self, request: GenerationRequest) -> Inference:
        """Return the worker for a request.

        Raises:
            EngineError: no worker is in use.
        """
        if request.placement is not None:
            wanted = self._affinity.wanted(request.domain)
            return self._workers[_turn(request.placement, self._candidates(request.domain, wanted))]
        placed = self._workers.get(self._placed.get(request.trajectory_id, ""))
        if placed is not None:
            return placed
        name = self._least_loaded(request)
        if request.trajectory_id:
            self._placed[request.trajectory_id] = name
        return self._workers[name]

    def _least_loaded(self, request: GenerationRequest) -> str:
        """Return the least-loaded worker's name.

        Ties go to the first worker from a position derived from the trajectory id, so that
        independent clients spread their requests evenly without random numbers.
        """
        candidates = self._candidates(request.domain, self._affinity.place(request.domain))
        place = zlib.crc32(request.trajectory_id.encode()) % len(candidates)
        turns = range(place - len(candidates), place)
        idle = next((i for i in turns if candidates[i] not in self._load), None)
        if idle is not None:
            return candidates[idle]
        return min((candidates[i] for i in turns), key=self._load.__getitem__)

    def _candidates(self, domain: str, wanted: str | None) -> list[str]:
        """Return the sorted worker names for a domain, in the same order for every client."""
        if (domain, wanted) not in self._fitting:
            self._fitting[domain, wanted] = self._find(domain, wanted)
        return self._fitting[domain, wanted]

    def _find(self, domain: str, wanted: str | None) -> list[str]:
        if not self._workers:
            raise EngineError("no inference worker is left; start one and add it")
        names = sorted(self._workers)
        fitting = [n for n in names if wanted is None or wanted in self._workers[n].stands_for]
        if fitting:
            return fitting
        if domain not in self._fallen_back:
            self._fallen_back.add(domain)
            self._emit(
                Event(
                    EventKind.FALLBACK,
                    subject=domain,
                    domain=domain,
                    detail={
                        "wanted": wanted,
                        "used": sorted({w.hardware for w in self._workers.values()}),
                    },
                )
            )
        return names


def _turn(group: int, workers: Sequence[str]) -> str:
    """Return the worker of a group; each round of len(workers) groups uses each worker once.

    The function is stateless, so that all clients choose the same worker. The first worker differs
    between rounds, since alternating domains would otherwise always get the same worker.
    """
    first = zlib.crc32(str(group // len(workers)).encode())
    return workers[(first + group) % len(workers)]
