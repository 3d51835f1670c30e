"""Frozen values that cross processes, and their enums.

This module does no computation and imports neither Ray nor torch. All values are immutable, compare
by value, so that a message that arrives twice is recognized, and can be pickled.

Token positions: a trajectory is one append-only chain of tokens. `start` and `end` of a turn are
offsets into it; observation tokens come first in a turn, generated (action) tokens after them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Outcome(StrEnum):
    """How an attempt ended. Exactly one row of `trajectories` holds the outcome of an attempt."""

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
    FILTERED = "filtered"
    """A filter refused the trajectory."""
    GROUP_FILTERED = "group_filtered"
    """A filter refused the complete group of the trajectory."""
    WORKER_LOST = "worker_lost"
    WORKER_LEFT = "worker_left"


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

    ADMIT = "admit"
    START = "start"
    EVICT = "evict"
    DROP = "drop"
    ABORT = "abort"
    RETRY = "retry"
    ABANDON = "abandon"
    SUSPEND = "suspend"
    UPDATE = "update"
    RELEASE = "release"
    RESUME = "resume"
    FALLBACK = "fallback"
    AFFINITY = "affinity"
    """A domain is bound to another hardware class."""
    SLIDE = "slide"
    """A worker switches to training, or back to rollout."""
    REBIND = "rebind"
    """A worker of the requested class replaces one of another class."""
    CRASH = "crash"
    STALL = "stall"
    CHECKPOINT = "checkpoint"
    RUN = "run"
    DIVERGENCE = "divergence"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. Stored with each trajectory and applied again by the trainer.

    Defaults follow ROLL Flash A.1: temperature 1 and top-p 1, so that stored logprobs are those
    of the policy itself.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    max_tokens: int = 64
    """Maximum number of tokens of one generation (one turn)."""
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows every token; otherwise all others have probability zero."""

    @property
    def truncates(self) -> bool:
        """Whether top-p or top-k cut the distribution, so that kept token ids are recorded."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of one domain. `payload` is JSON and is all that the environment needs."""

    task_id: str
    domain: str
    payload: str = "{}"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one task, as handed from the scheduler to an EnvManager.

    `attempt` is the index within the group; a replacement takes the next one, a retry of the same
    attempt by Ray keeps the `trajectory_id`.
    """

    trajectory_id: str
    group_id: str
    task: Task
    attempt: int
    env_seed: int
    sampling: Sampling = field(default_factory=Sampling)
    split: Split = Split.TRAIN

    @property
    def episode_id(self) -> str:
        """The episode; equal to the trajectory unless histories are rewritten."""
        return self.trajectory_id


@dataclass(frozen=True, slots=True)
class Prefix:
    """The KV cache of a prompt, which a prefill worker holds until a decode worker fetches it."""

    version: int
    """Policy version that computed the cache, which is valid for no other version."""
    address: str
    """Location of the cache, in the form that engines of this kind exchange."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request to generate tokens.

    `prompt_ids` is the whole chain so far: observation and action tokens.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    trajectory_id: str = ""
    """Key of sticky placement, so that a prefix stays cached on one worker."""
    domain: str = "default"
    placement: int | None = None
    """Number of the group, if one worker decodes all requests of a group; None: placement follows
    trajectory and load."""
    prefill_only: bool = False
    """Compute the prompt's KV cache and hold it for a decode worker; sample no token."""
    prefix: Prefix | None = None
    """KV cache that another worker computed; None: this worker computes the whole prompt."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the generated tokens of one request, with the policy version that sampled each.

    `offset` counts generated tokens of the request before this chunk, so that a chunk that
    arrives twice is recognized. The four lists are aligned, `kept` only where `Sampling.truncates`.
    """

    request_id: str
    offset: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Policy version that sampled each token."""
    finish_reason: FinishReason | None = None
    """None: more will follow."""
    kept: tuple[tuple[int, ...], ...] = ()
    """Per token, the ids that top-p or top-k left to sample from."""
    prefix: Prefix | None = None
    """The held KV cache, in reply to `GenerationRequest.prefill_only`; None if none is held."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation: its joined chunks and the worker that ran it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    hardware: str = ""
    worker: str = ""
    kept: tuple[tuple[int, ...], ...] = ()
    prefilled_by: str = ""
    """Worker that computed the KV cache of the prompt; empty: the one that sampled the tokens."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One observation and the action that answered it. Offsets are into the token chain."""

    start: int
    end: int
    observation: str
    action: str
    reward: float
    """The environment's reward for the action."""
    generate_s: float
    step_s: float
    hardware: str
    worker: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt, whatever its outcome: a row of `trajectories` without `seq` and `committed_at`.

    Token lists are aligned: on observation tokens `action_mask` is False, `logprobs` 0.0 and
    `token_versions` -1.
    """

    trajectory_id: str
    episode_id: str
    group_id: str
    task_id: str
    domain: str
    attempt: int
    outcome: Outcome
    task: str
    """JSON payload of the task."""
    sampling: Sampling
    split: Split
    env_seed: int
    env_version: str
    created_at: datetime
    finished_at: datetime
    reset_s: float
    reason: Reason | None = None
    error: str | None = None
    policy_version_start: int | None = None
    """Version of the first generated token; None if no token was generated."""
    policy_version_end: int | None = None
    token_ids: tuple[int, ...] = ()
    action_mask: tuple[bool, ...] = ()
    logprobs: tuple[float, ...] = ()
    token_versions: tuple[int, ...] = ()
    kept_token_ids: tuple[tuple[int, ...], ...] | None = None
    turns: tuple[Turn, ...] = ()
    solved: bool | None = None
    """info["success"] of the environment, or None if it does not report one."""
    reward: float | None = None
    reward_parts: Mapping[str, float] | None = None
    scored_at: datetime | None = None
    prefill_workers: tuple[str, ...] | None = None
    """By turn, the prefill worker that computed the KV cache of the prompt; empty for a turn that
    had none. None if no turn had one."""


def solved_by(success: bool | None, reward: float | None) -> bool | None:
    """Whether an attempt solved its task.

    The success that the environment reports counts, or else a reward of at least 1; the result is
    None if neither is known.
    """
    if success is not None or reward is None:
        return success
    return reward >= 1


@dataclass(frozen=True, slots=True)
class Sample:
    """The control plane's summary of a committed trajectory, without token data."""

    trajectory_id: str
    group_id: str
    domain: str
    attempt: int
    outcome: Outcome
    policy_version_start: int | None
    policy_version_end: int | None
    scored: bool
    tokens: int
    error: str | None = None
    task_id: str = ""
    solved: bool | None = None
    """Whether the attempt solved its task, by `solved_by`."""

    @property
    def trainable(self) -> bool:
        """Whether it was completed or truncated, is scored, and has a generated token."""
        return self.outcome in TRAINABLE and self.scored and self.policy_version_start is not None

    @property
    def filtered(self) -> bool:
        """Whether a filter refused it before reward: completed or truncated, but not scored."""
        return self.outcome in TRAINABLE and not self.scored

    @classmethod
    def of(cls, trajectory: Trajectory, *, scored: bool, tokens: int) -> "Sample":
        """Summarize a trajectory.

        Args:
            trajectory: a trajectory of any outcome.
            scored: whether it has its reward.
            tokens: length of its token chain; in a simulation, each id stands for many tokens.
        """
        return cls(
            trajectory_id=trajectory.trajectory_id,
            group_id=trajectory.group_id,
            domain=trajectory.domain,
            attempt=trajectory.attempt,
            outcome=trajectory.outcome,
            policy_version_start=trajectory.policy_version_start,
            policy_version_end=trajectory.policy_version_end,
            scored=scored,
            tokens=tokens,
            error=trajectory.error,
            task_id=trajectory.task_id,
            solved=solved_by(trajectory.solved, trajectory.reward),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The trajectories of one training step, by id; the token data stays in the buffer.

    `trajectory_ids` is in training order, group by group.
    """

    step: int
    policy_version: int
    """n: the version that the engines served when the batch was formed."""
    trained_version: int
    """step - 1: the weights that the step starts from."""
    trajectory_ids: tuple[str, ...]
    group_ids: tuple[str, ...]
    """Aligned with `trajectory_ids`."""
    staleness: tuple[int, ...]
    """policy_version - policy_version_start, aligned with `trajectory_ids`."""


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
