"""Schedules: in which order a training step's phases run, and what is promised for it.

A schedule is data. The AsyncController runs its `order`, the scheduler and the buffer ask its
`bound`, `admission` and `selection`, what drives the attempts of a process its switches and its
`stages`, so that another schedule is another composition of the same parts and no other class. Each
declares its invariant: `violations` finds the batches that break it.
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
    """What a training step consists of, seen from the control plane."""

    GET_BATCH = "get_batch"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    TRAIN = "train"


SIX_STEPS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.UPDATE, Phase.RESUME, Phase.TRAIN)
"""ROLLART section 6.2; the fifth, recompute, happens in the engines when they resume."""

SYNCHRONOUS = (Phase.GET_BATCH, Phase.SUSPEND, Phase.TRAIN, Phase.UPDATE, Phase.RESUME)
"""ROLL Flash section 4.2: suspended right after get_batch, so that all that follows is new."""


SWITCHES = ("queue_scheduling", "prompt_replication", "overlapped", "patient")
"""Fields of a schedule that may be set for any of them, in text too: see `Schedule.switched`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to interleave rollout and training.

    Raises:
        SettingsError: stages and lockstep: who waits for a place would hold up the turns of all.
    """

    name: str
    order: tuple[Phase, ...]
    """What comes before TRAIN runs in `next_batch`, what comes after it in `trained`."""
    bound: Bound
    checks: tuple[Check, ...]
    """The invariant: each must hold for each batch."""
    admission: Admit = by_credits
    """Whether one more group may be opened."""
    selection: Select = oldest_first
    """Which complete groups form a batch."""
    order_checks: tuple[OrderCheck, ...] = ()
    """The invariant over all batches."""
    lockstep: bool = False
    """Whether the attempts of a process take their turns together."""
    overlapped: bool = False
    """Whether a batch is trained at once, and weights are exchanged beside its training."""
    patient: bool = False
    """Whether a batch waits for what could not be in a later one, so that nothing is aborted."""
    queue_scheduling: bool = True
    """Whether each attempt is scored as soon as it ends; else none is before all that run beside it
    in its process have ended (ROLL Flash section 5.1.1)."""
    prompt_replication: bool = True
    """Whether each attempt of a group is placed by itself; else one worker decodes all of them, as
    with num_return_sequences > 1 (ROLL Flash section 5.1.2)."""
    stages: StageSizes | None = None
    """Attempts of a process in each stage of a rollout; None: as many as are admitted."""
    shared: bool = False
    """Whether the engines share their devices with the trainer: while they are suspended, they give
    back the memory that only generation needs."""

    def __post_init__(self) -> None:
        if self.lockstep and self.stages is not None:
            raise SettingsError(f"schedule {self.name} is in lockstep, so it can have no stages")
        if self.overlapped and Phase.UPDATE not in self.before_training:
            raise SettingsError(
                f"schedule {self.name} suspends the rollout while it trains, "
                "so that weights cannot be exchanged beside training"
            )

    def switched(self, **switches: Any) -> "Schedule":
        """The same schedule with some of its `SWITCHES` set; its name says which.

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
        """What is wrong with batches, one line each; empty where the invariant holds."""
        batches = tuple(batches)
        found = [check(self.bound, batch) for batch in batches for check in self.checks]
        found += [line for check in self.order_checks for line in check(batches)]
        return tuple(line for line in found if line is not None)


def rollart(alpha: float | Fraction = 1) -> Schedule:
    """The six-step protocol of ROLLART section 6.2; with alpha 0 it is `sync_plus()`.

    Training of step k overlaps rollout under version k - 1. Where that is still being published
    when the batch is there, the step does not wait for it: the swap comes beside its training.

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
    """`rollart` that neither waits for a transfer of weights nor throws anything away.

    The batch is trained at once, and the weights of the step before are pushed and exchanged
    meanwhile. What ROLLART section 6.2 aborts, the next batch waits for: the longest trajectory
    bounds the step by its length over (1 + alpha), as it must where every trajectory counts.
    Batches take tasks in the order of their source, so that each is as mixed as the tasks are.

    Raises:
        SettingsError: alpha is negative or not a finite number, or 0: there is nothing to overlap.
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
    """Batch-level and synchronous (Sync in ROLLART section 7.1): `sync_plus` in lockstep.

    The environments of a process step together, and nothing is scored before all have ended.
    """
    return replace(sync_plus(), name="sync", lockstep=True, queue_scheduling=False)


def sync_plus() -> Schedule:
    """Synchronous training (Sync+ in ROLLART section 7.1): suspended while the step trains."""
    checks = (within_bound, on_policy)
    return Schedule("sync_plus", SYNCHRONOUS, StalenessPolicy(0), checks)


def one_off() -> Schedule:
    """Train on one batch while the next one is rolled out (One-off in ROLLART section 2, 7.1).

    No more than a batch is in flight and all of it is in the batch that is taken, so that nothing
    spans two versions: whatever is trained on was drawn by the weights before those it trains.
    """
    checks = (within_bound, served_at_most_one_behind)
    return Schedule("one_off", SIX_STEPS, StalenessPolicy(0), checks)


def areal(alpha: float | Fraction = 1) -> Schedule:
    """Bounded where trajectories start (AReaL; ROLLART sections 6.2 and 7.1).

    No more than (1 + alpha) batches are in flight or waiting; nothing is aborted for its age, and
    what was complete first is trained on first.

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
    """`areal` in a window of `width` groups (Forge): whoever finishes first inside is trained on.

    What is fast cannot overtake what is slow by more, so that slow tasks keep their share.

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
    """Rollout and training in turns on the same devices (verl's hybrid engine): `sync_plus` shared.

    From the suspension to the new weights the engines hold no KV cache; the promise is that of
    `sync_plus`: all that is trained on was started by the weights that it trains.
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
"""Schedules by name."""


def named_schedule(text: str) -> Schedule:
    """The schedule that a text such as "one_off" or "window(8, alpha=2)" names.

    Any of them takes the `SWITCHES`: "sync_plus(queue_scheduling=False)".

    Raises:
        SettingsError: there is none of that name, or its arguments are wrong.
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
    """A schedule's name with some keyword arguments set."""
    head, _, rest = name.partition("(")
    kept = [part for part in rest.rstrip(")").split(", ") if part]
    kept = [part for part in kept if part.partition("=")[0] not in arguments]
    parts = [*kept, *(f"{key}={value}" for key, value in arguments.items())]
    return f"{head}({', '.join(parts)})" if parts else name
