"""Outcomes, reasons and events: the values of one column each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from rollart_flow.types.pickling import pickled_by_values


class Outcome(StrEnum):
    """The end of an attempt. Exactly one row of `trajectories` holds the outcome of an attempt."""

    COMPLETED = "completed"
    """The environment terminated."""
    TRUNCATED = "truncated"
    """The environment truncated it, or the context or turn limit was reached."""
    FAILED = "failed"
    """The environment, the engine or the reward raised."""
    TIMED_OUT = "timed_out"
    """A step, the trajectory or the reward exceeded its time limit."""
    STALE = "stale"
    """Aborted in flight because it could no longer meet the staleness bound."""
    REDUNDANT = "redundant"
    """The attempt was surplus: its group was complete without it."""
    CANCELLED = "cancelled"
    """The run stopped."""


TRAINABLE = frozenset({Outcome.COMPLETED, Outcome.TRUNCATED})
"""Outcomes that can be trained on once they are scored."""


class Reason(StrEnum):
    """Why an attempt or group was dropped, retried or aborted. Every drop records its reason."""

    STALENESS_BOUND = "staleness_bound"
    GROUP_COMPLETE = "group_complete"
    GROUP_ABANDONED = "group_abandoned"
    GROUP_EVICTED = "group_evicted"
    RUN_STOPPED = "run_stopped"
    ENVIRONMENT_ERROR = "environment_error"
    ENVIRONMENT_TIMEOUT = "environment_timeout"
    TRAJECTORY_TIMEOUT = "trajectory_timeout"
    ENGINE_ERROR = "engine_error"
    REWARD_ERROR = "reward_error"
    REWARD_TIMEOUT = "reward_timeout"
    REWARD_NOT_FINITE = "reward_not_finite"
    CONTEXT_OVERFLOW = "context_overflow"
    TURN_LIMIT = "turn_limit"
    BRANCH_LIMIT = "branch_limit"
    AGENT_FAILED = "agent_failed"
    """The program of the agent failed."""
    AGENT_TIMEOUT = "agent_timeout"
    """The time of the agent's program was over."""
    AGENT_SILENT = "agent_silent"
    """The program of the agent got no answer, since it asked for none or in a wrong way."""
    FILTERED = "filtered"
    """A filter refused the trajectory."""
    GROUP_FILTERED = "group_filtered"
    """A filter refused the complete group of the trajectory."""
    SANDBOX_FAILED = "sandbox_failed"
    """Boxes of a task failed too often in a row."""
    TASK_QUARANTINED = "task_quarantined"
    """The task of the group is in quarantine."""
    WORKER_LOST = "worker_lost"
    WORKER_LEFT = "worker_left"
    UNANSWERED = "unanswered"
    """A captured agent never got the answer that these tokens are."""
    UNTRAINED_CALL = "untrained_call"
    """A captured agent's call is of a kind that is not trained on."""
    CAPTURE_ERROR = "capture_error"
    """The tokens of a captured agent's calls cannot be trusted."""


WITHHELD = frozenset({Reason.UNANSWERED, Reason.UNTRAINED_CALL, Reason.CAPTURE_ERROR})
"""Reasons of single rows of an attempt, whose tokens are not trained on."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop token was sampled; it is the last token."""
    LENGTH = "length"
    """`max_tokens` or the engine's context limit was reached."""
    ABORT = "abort"
    """The generation was aborted; the tokens so far are valid."""


class Split(StrEnum):
    """The purpose of a trajectory."""

    TRAIN = "train"
    EVALUATION = "evaluation"


class EventKind(StrEnum):
    """Kinds of rows of `events`."""

    PREPARE = "prepare"
    """The environments of a group are reset, before the group is admitted."""
    ADMIT = "admit"
    EVICT = "evict"
    DROP = "drop"
    ABORT = "abort"
    RETRY = "retry"
    ABANDON = "abandon"
    SUSPEND = "suspend"
    UPDATE = "update"
    RELEASE = "release"
    """A worker frees the memory that it does not need until it next generates or trains."""
    RESUME = "resume"
    FALLBACK = "fallback"
    AFFINITY = "affinity"
    """A domain is bound to another hardware class."""
    SLIDE = "slide"
    """A worker switches to training, or back to rollout."""
    REBIND = "rebind"
    """A worker of the requested class replaces one of another class."""
    QUARANTINE = "quarantine"
    """A task is attempted no more."""
    CRASH = "crash"
    STALL = "stall"
    CHECKPOINT = "checkpoint"
    REFUSE = "refuse"
    """Tasks were passed over, since they are not admitted (`rollart tasks check`)."""
    SKIP = "skip"
    """A step left the weights unchanged, since its batch could not be trained on."""
    RUN = "run"
    DIVERGENCE = "divergence"
    ALARM = "alarm"
    """A sign of trouble has lasted, or is over (`metrics.alarms`)."""
    TRACKER = "tracker"
    """A tracker ended before it had the whole run, which went on without it."""
    UNKNOWN_KEY = "unknown_key"
    """Requests reached a gateway of programs with a key that no attempt under way has."""
    MAINTENANCE = "maintenance"
    """Maintenance of the tables failed: merging, checkpoints of their logs, or removing files."""


@pickled_by_values
@dataclass(frozen=True, slots=True)
class Event:
    """An event of the control plane; a row of `events` after its commit."""

    kind: EventKind
    subject: str
    reason: Reason | None = None
    domain: str | None = None
    policy_version: int | None = None
    step: int | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    """JSON-serializable details."""


@dataclass(frozen=True, slots=True)
class Retried:
    """An operation that failed and was repeated."""

    what: str
    failures: int
    seconds: float
    """From the first failure to the success."""
    error: str
    """The last error, as one line."""

    def event(self, subject: str, version: int | None = None) -> Event:
        """Return the event that records this."""
        detail = {**asdict(self), "seconds": round(self.seconds, 3)}
        return Event(EventKind.RETRY, subject, policy_version=version, detail=detail)
