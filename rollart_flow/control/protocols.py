"""Protocols of the control plane, which Ray actors, simulated parts and faulty parts implement.

Messages are frozen and idempotent: a repeated call has the effect of a single call. A stream is
read with a cursor (`after`), so that lost items are read again and duplicates are recognized;
reading after a cursor also acknowledges all items up to it. Messages may be delayed, lost,
repeated and reordered. A message that was sent to a process does not reach the process that
replaces it, unless the sender still waits for the answer.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollart_flow.types import (
    Assignment,
    Batch,
    Chunk,
    Event,
    GenerationRequest,
    Outcome,
    Reason,
    Retried,
    Sample,
)
from rollart_flow.types.pickling import pickled_by_values

Emit = Callable[[Event], None]
"""Callback through which the control plane reports events; it must not block."""


class Inference(Protocol):
    """Client interface of one inference worker."""

    @property
    def worker(self) -> str:
        """Name of the worker, unique in the run."""

    @property
    def hardware(self) -> str:
        """Hardware class that the worker was granted."""

    @property
    def stands_for(self) -> frozenset[str]:
        """Hardware classes whose requests the worker serves: its own class, and the classes that it
        was granted as a substitute for."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the tokens of one request; the last chunk has a finish reason.

        While the worker is suspended, the stream yields no chunk. An abort ends the stream with
        `FinishReason.ABORT`. Closing the iterator aborts the request.

        Raises:
            WorkerLeftError: the worker was told to stop serving; earlier chunks stay valid.
            EngineError: the worker died or refused the request; earlier chunks stay valid.
        """

    async def abort(self, request_id: str) -> None:
        """Abort a request; its stream ends with the tokens generated so far.

        Unknown ids are ignored.
        """


@dataclass(frozen=True, slots=True)
class PullStats:
    """Time spent on reading a weight version (ROLLART section 7.4, Table 4)."""

    pull_s: float = 0.0
    """Seconds of reading, summed over the workers."""
    exposed_s: float = 0.0
    """Seconds that the weight swap waited for the read; the maximum over the workers."""
    retried: tuple[Retried, ...] = ()
    """Reads that failed and were repeated."""

    @classmethod
    def of_all(cls, pulls: Collection["PullStats"]) -> "PullStats":
        """Return the sum of the seconds of reading, and the longest wait."""
        exposed_s = max((pull.exposed_s for pull in pulls), default=0.0)
        return cls(sum(pull.pull_s for pull in pulls), exposed_s)


class EngineCommands(Protocol):
    """Commands that the EngineGroup sends to one inference worker. Each command is idempotent.

    A command waits while a replacement process is being started. Each command raises
    WorkerLostError once the worker will not be restarted any more.
    """

    @property
    def name(self) -> str:
        """Name of the worker, unique in the run."""

    async def suspend(self) -> None:
        """Return once the worker samples no more tokens."""

    def prefetch(self, version: int) -> None:
        """Begin to read a version, which may be being published, while generation continues.

        This does not wait. `update` reads the version again if the read failed.
        """

    async def update(self, version: int) -> PullStats:
        """Return once the worker holds exactly this version; no effect if it already does."""

    async def serve(self, version: int) -> bool:
        """Load this version and sample tokens.

        Returns:
            Whether a new process starts to serve with this call.
        """

    async def release(self) -> int:
        """Free the memory that only generation needs, until `serve`; return the freed bytes."""

    async def leave(self) -> int:
        """End the requests in flight with WorkerLeftError and accept none until `serve`.

        Returns:
            Freed bytes of the memory that only generation needs.
        """

    async def ping(self) -> None:
        """Return once the worker answers, whether or not it is busy.

        Raises:
            WorkerAwayError: the process has died, and no node can host a replacement now.
            EngineError: the process has died, and a replacement is being started.
        """

    def restart(self) -> None:
        """End the worker's process, even if it hangs, without waiting.

        A replacement is started if the worker was not restarted before; otherwise the worker is
        lost permanently.
        """


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Request to stop an attempt, which then ends with this outcome and reason."""

    trajectory_id: str
    outcome: Outcome
    reason: Reason


@dataclass(frozen=True, slots=True)
class ResetOnly:
    """Permission for an attempt whose group is not admitted yet: it may reset its environment, and
    generates its first token after a `Clearance`."""


@dataclass(frozen=True, slots=True)
class Clearance:
    """Message that an attempt which was reset ahead may generate, since its group is admitted."""

    trajectory_id: str


Order = Cancellation | Clearance
"""Message of the scheduler to an attempt that runs."""
Permission = Cancellation | ResetOnly | None
"""Answer to an attempt that is about to start: None if it may; otherwise the cancellation that it
ends with, or the permission for its reset alone."""


END = -1
"""Cursor after which a rollout worker reads no more orders, since the run ends."""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that a rollout worker reports to a restarted scheduler."""

    trajectory_id: str
    group_id: str
    attempt: int
    version: int | None
    """Policy version of the first token; None before that token."""


class Admission(Protocol):
    """Interface of the RolloutScheduler for rollout."""

    async def admit(self, source: str, index: int, most: int = 1) -> tuple[Assignment, ...]:
        """Wait for credit and return the index-th block of attempts for a source.

        A source asks for consecutive indices. A repeated call with the same index returns the
        same block, so that none is lost or duplicated.

        Args:
            source: name of the source.
            index: number of the block.
            most: maximum number of attempts. The block has those that may start now, at least one.

        Returns:
            The attempts; none if the run ends.

        Raises:
            UnknownClientError: the scheduler was restarted; call `adopt`, then ask again.
            BlockOverError: a repeated call, and all attempts of the block have started or ended.
        """

    async def adopt(self, source: str, blocks: Sequence[Sequence[str]]) -> None:
        """Tell a restarted scheduler the ids of the attempts of all blocks of a source."""

    async def permit(self, trajectory_id: str, worker: str) -> Permission:
        """Ask for permission just before reset, since the attempt may have waited in a queue.

        Args:
            trajectory_id: id of the attempt's trajectory.
            worker: name of the rollout worker that runs the attempt and reads its orders.
        """

    def started(self, trajectory_id: str, version: int) -> Awaitable[None]:
        """Report that the first token was generated, under this policy version."""

    async def orders(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        """Wait for orders to a rollout worker past the cursor.

        Returns:
            (new cursor, orders). The cursor may be `END`.

        Raises:
            UnknownClientError: the scheduler does not know the rollout worker (any more); call
                `announce`, and read on from its cursor.
        """

    async def announce(
        self, worker: str, running: Sequence[RunningAttempt]
    ) -> tuple[int, tuple[Order, ...]]:
        """Report all attempts that a rollout worker runs.

        Returns:
            (cursor for `orders`, cancellations of the attempts that may not go on, and clearances
            of those that may and have no token yet).
        """


@pickled_by_values
@dataclass(frozen=True, slots=True)
class Change:
    """A change of the buffer's contents. Exactly one of the fields is set."""

    committed: Sample | None = None
    """Committed row of `trajectories` (training split only)."""
    dropped: tuple[str, Reason] | None = None
    """(trajectory_id, reason) of a filtered committed trajectory, which its group now lacks."""
    evicted: tuple[str, Reason] | None = None
    """(group_id, reason) of a whole group that left the buffer without being trained on."""
    consumed: str | None = None
    """Id of a group that was put into a batch."""


class Buffered(Protocol):
    """Interface of the SampleBuffer for the AsyncController and the RolloutScheduler."""

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Evict groups that violate the bound, wait for enough complete groups, form the batch.

        A repeated call for the same step returns the same batch.
        """

    async def formed(self, step: int) -> Batch | None:
        """Return the batch of a step if it was formed, or None."""

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Wait for changes past the cursor and return (new cursor, changes)."""
