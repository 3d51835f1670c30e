"""The record of a simulated run: plain rows, from which all figures are computed."""

import asyncio
from collections import Counter
from dataclasses import astuple, dataclass, field
from enum import StrEnum

from rollart_flow.simulation.workloads import Script
from rollart_flow.types import Batch, Event, EventKind, Outcome, Reason


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt that has ended."""

    trajectory_id: str
    group_id: str
    domain: str
    host: str
    started: float
    """Time at which it was handed to an environment [s]."""
    observed: float
    """Time from which it could generate: the environment was reset, and the group admitted [s]."""
    ended: float
    committed: float
    """Time at which it was scored and committed [s]."""
    outcome: Outcome
    reason: Reason | None
    version: int | None
    """Policy version of its first token; None if no token was sampled."""
    tokens: int
    lengths: tuple[int, ...]
    """Tokens of each row that is trained on: one for each branch."""
    sampled_tokens: int
    """Tokens that were sampled for it, those of interrupted actions included."""
    script: Script


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One training step [s since the start]."""

    step: int
    asked: float
    """Time at which training asked for the batch."""
    formed: float
    """Time at which the batch was formed and the engines had resumed, or waited for training."""
    trained: float
    pushed: float
    """Time at which the weights were in the store."""
    ended: float


class Activity(StrEnum):
    """An activity of training or of the transfer of weights."""

    WAIT = "wait"
    TRAIN = "train"
    PUSH = "push"
    SUSPEND = "suspend"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """One activity, from start to end [s since the start]."""

    activity: Activity
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class PoolTimes:
    """Counters of the inference workers of one hardware class, since the start [device s]."""

    devices: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    suspended_s: float = 0.0
    away_s: float = 0.0
    """Time for which the devices belonged to training."""
    recomputed_tokens: int = 0
    """Tokens whose KV cache was computed again after a preemption or an update."""
    sampled_tokens: int = 0

    def __sub__(self, earlier: "PoolTimes") -> "PoolTimes":
        """The increase since an earlier moment."""
        counters = zip(astuple(self)[1:], astuple(earlier)[1:], strict=True)
        return PoolTimes(self.devices, *(now - before for now, before in counters))


@dataclass(frozen=True, slots=True)
class Binding:
    """The choice of a hardware class for a domain by the profiler of a rollout worker."""

    at: float
    """Time of the choice [s since the start]."""
    domain: str
    hardware: str


@dataclass
class Record:
    """Everything that is known of one simulated run; it grows with each step."""

    attempts: dict[str, AttemptRecord] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    steps: list[StepTimes] = field(default_factory=list)
    pools: list[dict[str, PoolTimes]] = field(default_factory=list)
    """Counters by hardware class, at the end of each step."""
    left: dict[str, Reason] = field(default_factory=dict)
    """Reasons by trajectory id, of committed trajectories that were not trained on."""
    admitted: Counter[str] = field(default_factory=Counter)
    """Number of admitted groups by domain."""
    bindings: list[Binding] = field(default_factory=list)
    """Choices of all rollout workers, where hardware affinity is measured and not given."""
    exposed_pull_s: list[float] = field(default_factory=list)
    weights: list[ActivitySpan] = field(default_factory=list)
    """Pushes, and the suspensions of the inference workers with their updates."""
    reward_busy_s: float = 0.0
    """Device seconds in which the reward model worked."""
    reward_paid_s: float = 0.0
    """Device seconds that were paid for the reward model."""
    seconds: float = 0.0
    most_running: int = 0
    """Largest number of environments that ran at once."""
    turns: int = 0
    """Sum of the turns of all attempts that have ended."""

    def __call__(self, event: Event) -> None:
        """Take an event of the control plane."""
        if event.kind in (EventKind.DROP, EventKind.EVICT) and event.reason is not None:
            self.left[event.subject] = event.reason
        elif event.kind is EventKind.ADMIT:
            self.admitted[event.domain or ""] += 1
        elif event.kind is EventKind.AFFINITY:
            now, hardware = asyncio.get_running_loop().time(), str(event.detail["hardware"])
            self.bindings.append(Binding(now, event.subject, hardware))
