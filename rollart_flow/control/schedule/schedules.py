"""Schedules: the order of a training step's phases, and the invariants of its batches.

A schedule is data. The AsyncController runs its `order`, the scheduler and the buffer use its
`bound`, `admission` and `selection`, and rollout workers use its switches and its `stages`. A new
schedule is therefore a new composition of the same parts, not a new class. Each schedule declares
its invariant: `violations` finds the batches that break it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

from rollart_flow.calls import parse_call
from rollart_flow.control.schedule.invariants import (
    Check,
    NoneOvertakenByMore,
    OrderCheck,
    on_policy,
    served_at_most_one_behind,
    within_bound,
)
from rollart_flow.control.schedule.selection import (
    Admit,
    Select,
    WithinWindow,
    by_credits,
    first_completed,
    in_order,
    oldest_first,
)
from rollart_flow.control.schedule.stage_sizes import StageSizes
from rollart_flow.control.schedule.staleness import Bound, StalenessPolicy, StartBound
from rollart_flow.errors import SettingsError
from rollart_flow.types import Batch


class Phase(StrEnum):
    """Phases of a training step in the control plane."""

    GET_BATCH = "get_batch"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    TRAIN = "train"


SIX_STEPS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.UPDATE, Phase.RESUME, Phase.TRAIN)
"""Protocol of ROLLART section 6.2; its fifth step, recompute, happens when the engines resume."""

SYNCHRONOUS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.TRAIN, Phase.UPDATE, Phase.RESUME)
"""Order of ROLL Flash section 4.2: rollout is suspended right after get_batch, until the weights
are updated."""


SWITCHES = ("queue_scheduling", "prompt_replication", "overlapped", "patient")
"""Fields that may be set for any schedule, also in text: see `Schedule.switched`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to interleave rollout and training.

    Raises:
        SettingsError: stages and lockstep are combined, or a schedule that suspends rollout during
            training is overlapped.
    """

    name: str
    order: tuple[Phase, ...]
    """Phases in order; those before TRAIN run in `next_batch`, those after it in `trained`."""
    bound: Bound
    checks: tuple[Check, ...]
    """Invariants that must hold for each batch."""
    admission: Admit = by_credits
    """Decision whether one more group may be opened."""
    selection: Select = oldest_first
    """Choice of the complete groups that form a batch."""
    order_checks: tuple[OrderCheck, ...] = ()
    """Invariants over all batches."""
    lockstep: bool = False
    """Whether the attempts of a process take their turns together."""
    overlapped: bool = False
    """Whether a batch is trained at once while weights are exchanged concurrently."""
    patient: bool = False
    """Whether a batch waits for attempts that would be too old later, so that none is aborted."""
    queue_scheduling: bool = True
    """Whether each attempt is scored as soon as it ends; otherwise all attempts of its process have
    to end first (ROLL Flash section 5.1.1)."""
    prompt_replication: bool = True
    """Whether attempts of a group are placed independently; otherwise one worker decodes them all,
    as with num_return_sequences > 1 (ROLL Flash section 5.1.2)."""
    stages: StageSizes | None = None
    """Attempts of a process in each stage of a rollout; None means no limit."""
    shared: bool = False
    """Whether the engines share their devices with the trainer and therefore free the memory that
    only generation needs while they are suspended."""

    def __post_init__(self) -> None:
        if self.lockstep and self.stages is not None:
            raise SettingsError(f"schedule {self.name} is in lockstep, so it can have no stages")
        if self.overlapped and Phase.UPDATE not in self.before_training:
            raise SettingsError(
                f"schedule {self.name} suspends the rollout while it trains, "
                "so that weights cannot be exchanged beside training"
            )

    def switched(self, **switches: Any) -> "Schedule":
        """Return the same schedule with some `SWITCHES` set, which its name lists.

        Raises:
            TypeError: there is no such switch.
            SettingsError: a value is neither True nor False.
        """
        for name, value in switches.items():
            if name not in SWITCHES:
                raise TypeError(f"no switch {name!r}; there are {', '.join(SWITCHES)}")
            if not isinstance(value, bool):
                raise SettingsError(f"{name} is {value!r}, but must be True or False")
        changes: dict[str, Any] = {k: v for k, v in switches.items() if v != getattr(self, k)}
        return replace(self, name=_with_arguments(self.name, changes), **changes)

    @property
    def before_training(self) -> tuple[Phase, ...]:
        """Phases between GET_BATCH and TRAIN."""
        return self.order[1 : self.order.index(Phase.TRAIN)]

    @property
    def after_training(self) -> tuple[Phase, ...]:
        """Phases after TRAIN."""
        return self.order[self.order.index(Phase.TRAIN) + 1 :]

    def violations(self, batches: Iterable[Batch]) -> tuple[str, ...]:
        """Return the violations of the invariant, one line each; empty if the invariant holds."""
        batches = tuple(batches)
        found = [check(self.bound, batch) for batch in batches for check in self.checks]
        found += [line for check in self.order_checks for line in check(batches)]
        return tuple(line for line in found if line is not None)


def rollart(alpha: float | Fraction = 1) -> Schedule:
    """The six-step protocol of ROLLART section 6.2; with alpha 0 it is `sync_plus()`.

    Training of step k overlaps rollout under version k - 1. If that version is not yet published
    when the batch is ready, training starts anyway, and the swap overlaps training.

    Raises:
        SettingsError: alpha is negative or not a finite number.
    """
    bound = StalenessPolicy(alpha)
    if bound.bound == 0:
        return sync_plus()
    return Schedule(
        f"rollart(alpha={float(alpha):g})",
        SIX_STEPS,
        bound,
        (within_bound, served_at_most_one_behind),
    )


def rollart_plus(alpha: float | Fraction = 1) -> Schedule:
    """Variant of `rollart` that neither waits for weight transfers nor aborts stale attempts.

    The batch is trained at once, while the weights of the previous step are pushed and exchanged.
    The next batch waits for the attempts that ROLLART section 6.2 would abort, so that the longest
    trajectory bounds the step time by its length over (1 + alpha). Batches take tasks in the
    order of their source, so that each batch has the same mix as the tasks.

    Raises:
        SettingsError: alpha is negative or not a finite number, or 0, which
            leaves nothing to overlap.
    """
    bound = StalenessPolicy(alpha)
    if bound.bound == 0:
        raise SettingsError("rollart_plus needs an alpha above 0; take sync_plus() instead")
    return replace(
        rollart(alpha),
        name=f"rollart_plus(alpha={float(alpha):g})",
        overlapped=True,
        patient=True,
        selection=in_order,
    )


def sync() -> Schedule:
    """Batch-level synchronous training (Sync in ROLLART section 7.1): `sync_plus` in lockstep.

    The environments of a process step together, and scoring starts once all have ended.
    """
    return replace(sync_plus(), name="sync", lockstep=True, queue_scheduling=False)


def sync_plus() -> Schedule:
    """Synchronous training (Sync+ in ROLLART section 7.1): training suspends rollout."""
    checks = (within_bound, on_policy)
    return Schedule("sync_plus", SYNCHRONOUS, StalenessPolicy(0), checks)


def one_off() -> Schedule:
    """Train on a batch while the next one is generated (One-off in ROLLART sections 2 and 7.1).

    At most one batch is in flight, and the formed batch takes all of it, so no trajectory spans
    two versions: the behavior policy of a batch is the version before the one that it trains.
    """
    checks = (within_bound, served_at_most_one_behind)
    return Schedule("one_off", SIX_STEPS, StalenessPolicy(0), checks)


def areal(alpha: float | Fraction = 1) -> Schedule:
    """Staleness bounded only at the start of trajectories (AReaL; ROLLART sections 6.2 and 7.1).

    At most (1 + alpha) batches are in flight or waiting; no attempt is aborted for its age, and
    the groups that were complete first are trained on first.

    Raises:
        SettingsError: alpha is negative or not a finite number.
    """
    bound = StartBound(alpha)
    return Schedule(
        f"areal(alpha={float(alpha):g})",
        SIX_STEPS,
        bound,
        (served_at_most_one_behind,),
        selection=first_completed,
    )


def window(width: int, alpha: float | Fraction = 1) -> Schedule:
    """Variant of `areal` that trains the first finished groups in a window of `width` (Forge).

    A fast group cannot overtake a slow one by more than the window, so that slow tasks keep their
    share.

    Raises:
        SettingsError: width is not a positive whole number, or alpha negative.
    """
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise SettingsError(f"window width is {width!r}, but must be a whole number of at least 1")
    return replace(
        areal(alpha),
        name=f"window(width={width}, alpha={float(alpha):g})",
        admission=WithinWindow(width),
        order_checks=(NoneOvertakenByMore(width),),
    )


def staged(init: int, run: int, reward: int, alpha: float | Fraction = 1) -> Schedule:
    """`rollart(alpha)` in three bounded stages (SkyRL-Agent's dispatcher; see
    `control.rollout.stages`).

    In each process at most `init` environments are reset at once, at most `run` attempts generate
    and step, and at most `reward` trajectories are scored.

    Raises:
        SettingsError: a stage has no place, or alpha is negative or not a finite number.
    """
    return replace(
        rollart(alpha),
        name=f"staged(init={init}, run={run}, reward={reward}, alpha={float(alpha):g})",
        stages=StageSizes(init, run, reward),
    )


def hybrid() -> Schedule:
    """Alternating rollout and training on shared devices (verl's hybrid engine).

    Where the cluster has accelerators, each engine worker is placed on the device of one rank of
    the trainer. The engines hold no KV cache from the suspension to the new weights, and the
    trainer holds no weights and no optimizer tensors on the device outside of that time. The
    invariant is that of `sync_plus`: every trajectory was started by the weights that its step
    trains.
    """
    return replace(sync_plus(), name="hybrid", shared=True)


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    make.__name__: make
    for make in (
        rollart,
        rollart_plus,
        sync,
        sync_plus,
        one_off,
        areal,
        window,
        staged,
        hybrid,
    )
}
"""Schedule functions by name."""


def named_schedule(text: str) -> Schedule:
    """Return the schedule for a text such as "one_off" or "window(8, alpha=2)".

    Any schedule accepts the `SWITCHES`: "sync_plus(queue_scheduling=False)".

    Raises:
        SettingsError: no schedule has that name, or its arguments are invalid.
    """
    call = parse_call("schedule", text, "one_off or areal(alpha=2)")
    make = call.of(SCHEDULES)
    switches = {key: value for key, value in call.keywords.items() if key in SWITCHES}
    others = {key: value for key, value in call.keywords.items() if key not in SWITCHES}
    try:
        return make(*call.arguments, **others).switched(**switches)
    except TypeError as error:
        raise SettingsError(f"schedule {text!r}: {error}") from None


def _with_arguments(name: str, arguments: Mapping[str, object]) -> str:
    """Return a schedule's name with some keyword arguments set."""
    head, _, rest = name.partition("(")
    kept = [part for part in rest.rstrip(")").split(", ") if part]
    kept = [part for part in kept if part.partition("=")[0] not in arguments]
    parts = [*kept, *(f"{key}={value}" for key, value in arguments.items())]
    return f"{head}({', '.join(parts)})" if parts else name
