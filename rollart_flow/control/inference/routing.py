"""Which worker serves a request: hardware class by domain, sticky by trajectory, then load.

ROLLART section 5 (hardware affinity) with fallback to whatever is there. The classes are given, or
a profiler finds them. Requests that name a group
go to that group's worker instead (ROLL Flash section 5.1.2, without prompt replication). The
invariant: a request is routed as long as one worker is in use, and a domain's fallback is reported
once.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rollart_flow.control.protocols import Emit, Inference
from rollart_flow.errors import EngineError, WorkerLeftError
from rollart_flow.types import Event, EventKind, GenerationRequest, Reason


class Affinity(Protocol):
    """Says which hardware class a domain goes to."""

    def wanted(self, domain: str) -> str | None:
        """The class of a domain; None: any."""
        ...

    def place(self, domain: str) -> str | None:
        """The class for a new trajectory of a domain; None: any."""
        ...

    def resize(self, hardware: Iterable[str]) -> None:
        """The classes of all workers that are in use, once for each worker."""
        ...


class FixedAffinity:
    """Classes by domain, "default" for the others; whoever is not among them goes anywhere."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self._classes = classes

    def wanted(self, domain: str) -> str | None:
        """See `Affinity`."""
        return self._classes.get(domain, self._classes.get("default"))

    def place(self, domain: str) -> str | None:
        """See `Affinity`."""
        return self.wanted(domain)

    def resize(self, hardware: Iterable[str]) -> None:
        """Nothing: what is given stays."""


class Router:
    """Placement of requests; load is what this client has in flight.

    Args:
        workers: inference workers.
        emit: where fallbacks and lost workers are reported.
        affinity: says which hardware class a domain goes to.
    """

    def __init__(self, workers: Iterable[Inference], emit: Emit, affinity: Affinity) -> None:
        self._emit = emit
        self._affinity = affinity
        self._workers = {worker.worker: worker for worker in workers}
        self._load: dict[str, int] = {}
        """Requests in flight, of workers that have any: clients are many, and few workers of all
        are busy for one of them."""
        self._placed: dict[str, str] = {}
        self._fallen_back: set[str] = set()
        self._fitting: dict[tuple[str, str | None], list[str]] = {}
        """Names by domain and class; forgotten whenever a worker comes or goes."""
        self._resized()

    def __len__(self) -> int:
        """Workers in use."""
        return len(self._workers)

    def __contains__(self, name: str) -> bool:
        """Whether a worker of this name is in use."""
        return name in self._workers

    @property
    def names(self) -> tuple[str, ...]:
        """Workers in use."""
        return tuple(self._workers)

    def add(self, worker: Inference) -> None:
        """Use a worker."""
        self._workers[worker.worker] = worker
        self._resized()

    def remove(self, name: str) -> None:
        """Use a worker no more."""
        self._workers.pop(name, None)
        self._resized()

    def _resized(self) -> None:
        self._fitting.clear()
        self._affinity.resize(worker.hardware for worker in self._workers.values())

    def lost(self, worker: Inference, error: Exception) -> None:
        """A worker died, or left as it was told to; a death is reported once."""
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
        """A request is in flight on a worker."""
        name = worker.worker
        self._load[name] = self._load.get(name, 0) + 1

    def end(self, worker: Inference) -> None:
        """It is over."""
        name = worker.worker
        self._load[name] -= 1
        if not self._load[name]:
            del self._load[name]

    def release(self, trajectory_id: str) -> None:
        """Forget where a trajectory was placed."""
        self._placed.pop(trajectory_id, None)

    def route(self, request: GenerationRequest) -> Inference:
        """The worker for a request.

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
        """Of equals the first after a place that the trajectory's id names: clients that do not
        know each other spread their requests evenly, without a random number."""
        candidates = self._candidates(request.domain, self._affinity.place(request.domain))
        place = zlib.crc32(request.trajectory_id.encode()) % len(candidates)
        turns = range(place - len(candidates), place)
        idle = next((i for i in turns if candidates[i] not in self._load), None)
        if idle is not None:
            return candidates[idle]
        return min((candidates[i] for i in turns), key=self._load.__getitem__)

    def _candidates(self, domain: str, wanted: str | None) -> list[str]:
        """Names of the workers for a domain in order, so that every client counts them alike."""
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
    """The worker of a group: each worker has one of as many groups as there are workers.

    Nothing is remembered, so that all clients choose alike and nothing has to be forgotten. Which
    one begins differs from round to round: domains that take turns would keep their worker.
    """
    first = zlib.crc32(str(group // len(workers)).encode())
    return workers[(first + group) % len(workers)]
