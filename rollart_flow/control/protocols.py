"""What the control plane talks to. Each port is implemented in one process, over Ray, and by tests.

Messages through ports are frozen and idempotent: a call that is repeated has the effect of one,
and a stream is read with a cursor (`after`), so that what was lost on the way is read again and
what arrives twice is recognized. Reading after a cursor also acknowledges all up to it. Messages
may be delayed, lost, repeated and reordered; but none that was sent to a process reaches the one
that takes its place, unless its sender still waits for the answer.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollart_flow.errors import RunFailedError
from rollart_flow.types import (
    Assignment,
    Batch,
    Chunk,
    Event,
    Generation,
    GenerationRequest,
    Outcome,
    Reason,
    Sample,
)


class Inference(Protocol):
    """One inference worker, as a client sees it."""

    @property
    def worker(self) -> str:
        """Name of the worker, unique in the run."""
        ...

    @property
    def hardware(self) -> str:
        """Hardware class that it was granted."""
        ...

    @property
    def stands_for(self) -> frozenset[str]:
        """Classes whose requests it serves: its own, and those that it was granted in place of."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the tokens of one request; the last chunk has a finish reason.

        While the worker is suspended, nothing comes. An abort ends the stream with
        `FinishReason.ABORT`. Closing the iterator aborts the request.

        Raises:
            WorkerLeftError: it was told to serve no longer; chunks so far stay valid.
            EngineError: the worker died or refused the request; chunks so far stay valid.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with the tokens it has. Unknown ids are ignored."""
        ...


class Generator(Protocol):
    """What generates for an EnvManager; the LLMProxy does."""

    async def generate(
        self, request: GenerationRequest, on_first: Callable[[int], None] | None = None
    ) -> Generation:
        """Generate until a finish reason; EngineError where that is impossible."""
        ...

    def abort(self, request_id: str) -> None:
        """End a generation: it returns what it has, with `FinishReason.ABORT`."""
        ...

    def session(self) -> int:
        """A number that nobody else gets from this generator."""
        ...

    def release(self, trajectory_id: str) -> None:
        """The trajectory is over."""
        ...


@dataclass(frozen=True, slots=True)
class PullStats:
    """What it took to read a version of the weights (ROLLART section 7.4, Table 4)."""

    pull_s: float = 0.0
    """Seconds of reading, accumulated over the workers."""
    exposed_s: float = 0.0
    """Seconds that the swap to it waited for that; of several workers, the longest."""


class EngineCommands(Protocol):
    """One inference worker, as the Fleet commands it. Idempotent each.

    A command waits while another process is being started in the worker's place. Each raises
    WorkerLostError once none will be.
    """

    @property
    def name(self) -> str:
        """Name of the worker, unique in the run."""
        ...

    async def suspend(self) -> None:
        """Return once it draws no token."""
        ...

    def prefetch(self, version: int) -> None:
        """Begin to read a version beside generation. Does not wait; what becomes of it shows in
        `update`, which reads again what was not read."""
        ...

    async def update(self, version: int) -> PullStats:
        """Return once it holds exactly this version; without effect where it does already."""
        ...

    async def serve(self, version: int) -> bool:
        """Hold this version and draw tokens; whether a new process begins to with this call."""
        ...

    async def release(self) -> int:
        """Give back the memory that only generation needs, until `serve`; its bytes."""
        ...

    async def leave(self) -> int:
        """End what is in flight with WorkerLeftError, take no more until `serve`, and give back
        the memory that only generation needs; its bytes."""
        ...

    async def ping(self) -> None:
        """Return once it answers, whatever it does besides.

        Raises:
            WorkerAwayError: the process has died, and no node can take another one now.
            EngineError: the process has died, and another one is being started.
        """
        ...

    def restart(self) -> None:
        """End its process, also one that hangs. Another one is started in its place if that has
        not happened before; otherwise the worker is lost for good. Does not wait for either."""
        ...


class InferenceControl(Protocol):
    """All inference workers of a run, as the AsyncController sees them. Idempotent each."""

    async def suspend(self) -> None:
        """Return once no worker generates: new requests are held, those in flight paused."""
        ...

    def prefetch(self, version: int) -> None:
        """A version is published, and `update` to it will follow: read it beside rollout. Does not
        wait, and nothing depends on it but how long that takes."""
        ...

    async def update(self, version: int) -> PullStats:
        """Return once every worker holds exactly this version. Only while suspended."""
        ...

    async def resume(self) -> None:
        """Go on: paused requests keep their tokens and rebuild their KV under the new weights."""
        ...

    async def to_training(self) -> None:
        """The devices that rollout and training share go over to training: what is in flight
        there goes on elsewhere."""
        ...

    async def to_rollout(self) -> None:
        """They serve again."""
        ...


class AsyncEnvironment(Protocol):
    """One environment, asynchronous: Gymnasium's five values with text in place of arrays."""

    async def reset(self, seed: int, task: str) -> tuple[str, Mapping[str, object]]:
        """Start an episode of the task (JSON payload); (observation, info)."""
        ...

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, object]]:
        """(observation, reward, terminated, truncated, info)."""
        ...

    async def close(self) -> None:
        """Release what the environment holds. May be called at any moment, and twice."""
        ...


class Codec(Protocol):
    """Text to tokens and back. Generated tokens are never encoded again."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        """Tokens of one observation, with what precedes it and what invites the next action.

        Args:
            text: what the environment said.
            first: whether it opens the trajectory.
            ended: whether the action before it ended with a stop token; if not, the marker that
                ends a turn is put before the observation. Without meaning for the first one.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated tokens, without stop tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Stop this attempt; it ends with the outcome and the reason."""

    trajectory_id: str
    outcome: Outcome
    reason: Reason


class Admission(Protocol):
    """The RolloutScheduler as rollout sees it."""

    async def admit(self, source: str, index: int) -> Assignment | None:
        """The index-th attempt for this source; waits for credit. None: the run ends.

        A source asks for one index after the other. Asked again with the same index it answers
        the same, so that a source that is restarted neither loses nor doubles an attempt. Beside a
        scheduler that was restarted too, a restarted source takes a new name.
        """
        ...

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        """Ask again just before reset, since the attempt may have waited in a queue.

        None: go on. A cancellation: do not start, end with this outcome. `host` is who runs the
        attempt and reads its cancellations.
        """
        ...

    async def started(self, trajectory_id: str, version: int) -> None:
        """The first token was generated, under this policy version."""
        ...

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """Wait for cancellations for this host past the cursor; (new cursor, cancellations)."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """Something that the buffer did. Exactly one of the fields is set."""

    committed: Sample | None = None
    """A row of `trajectories` was committed (training split only)."""
    dropped: tuple[str, Reason] | None = None
    """(trajectory_id, reason): a committed trajectory was filtered; its group lacks one."""
    evicted: tuple[str, Reason] | None = None
    """(group_id, reason): a whole group left the buffer without being trained on."""
    consumed: str | None = None
    """Group id: a batch holds it."""


class Buffered(Protocol):
    """The SampleBuffer as the AsyncController and the RolloutScheduler see it."""

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Evict what violates the bound, wait for enough fresh complete groups, form the batch.

        Asked again for the same step it answers the same batch.
        """
        ...

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Wait for changes past the cursor; (new cursor, changes)."""
        ...


class Scheduling(Protocol):
    """The RolloutScheduler as the AsyncController sees it, in the same process. Idempotent each."""

    def batch_ready(self) -> bool:
        """Whether the buffer holds a whole batch, as far as the scheduler has heard."""
        ...

    def batch_taken(self, batch: Batch) -> None:
        """The batch is formed and the engines are suspended, or need not be: its credits are free
        again, and what is admitted with them starts under the version that comes next."""
        ...

    async def settled(self, version: int) -> None:
        """Wait until nothing in flight would be too old under this version."""
        ...

    def version_updated(self, version: int) -> None:
        """The engines hold this version and are still suspended: abort what is too old for it."""
        ...

    def stop(self) -> None:
        """No more attempts are needed: cancel those in flight, admit none."""
        ...

    async def failed(self) -> RunFailedError:
        """Wait until the run cannot go on; why."""
        ...


class Emit(Protocol):
    """Where the control plane reports events. Must not block."""

    def __call__(self, event: Event) -> None: ...
