"""The schedules, by name. A new schedule is a new composition of the same parts, not a new class.

A package adds a schedule through an entry point of the group `rollart_flow.schedules` that names a
function from arguments to a `Schedule`.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from types import FunctionType

from rollart_flow.calls import parse_call
from rollart_flow.control.schedule.declarations import Barrier, Devices, Overdue, StageSizes, Swap
from rollart_flow.control.schedule.invariants import (
    NoneOvertakenByMore,
    on_policy,
    served_at_most_one_behind,
    served_what_is_trained,
    within_bound,
)
from rollart_flow.control.schedule.schedule import SWITCHES, Schedule
from rollart_flow.control.schedule.selection import WithinWindow, first_completed, in_order
from rollart_flow.control.schedule.staleness import LagBound, StalenessPolicy, StartBound
from rollart_flow.errors import SettingsError
from rollart_flow.registry import Registry


def rollart(alpha: float | Fraction = 1) -> Schedule:
    """The six-step protocol of ROLLART section 6.2; with alpha 0 it is `sync_plus()`.

    Alpha bounds the staleness: the version that the engines serve when a batch is formed, minus the
    version that started the trajectory, is at most ceil(alpha). The engines then still serve
    version k - 2, and step k trains version k - 1, so the lag is at most ceil(alpha) + 1; `flash`
    bounds the lag. Training of step k overlaps rollout under version k - 1. If that version is not
    yet published when the batch is ready, training starts anyway, and the swap overlaps training.

    Raises:
        SettingsError: alpha is negative or not a finite number.
    """
    bound = StalenessPolicy(alpha)
    if bound.bound == 0:
        return sync_plus()
    return Schedule(
        f"rollart(alpha={float(alpha):g})",
        Swap.BEFORE,
        bound,
        (within_bound, served_at_most_one_behind),
    )


def flash(alpha: float | Fraction = 1) -> Schedule:
    """Bound on the lag (ROLL Flash sections 4.2 and 4.3); with alpha 0 it is `sync_plus()`.

    The version that a step trains, minus the version that started the trajectory, is at most
    ceil(alpha) for every trained trajectory. As soon as step k - 1 is trained, its version is
    published and the engines swap to it. Only then is the batch of step k formed, so that staleness
    and lag are equal; training overlaps rollout, but not the publication and the swap.

    At most (1 + alpha) batches are in flight, waiting or in training, and the oldest groups are
    trained on first, so that an attempt becomes too old only if younger groups overtake its own.
    No sample is wasted: the next batch waits for such an attempt. Without the switch `patient` the
    swap that makes it too old aborts it. A fractional alpha limits what is in flight, and bounds
    the lag by the next whole number. Alpha 0 leaves no trajectory to generate during training.

    Raises:
        SettingsError: alpha is negative or not a finite number.
    """
    bound = LagBound(alpha)
    if bound.bound == 0:
        return sync_plus()
    return Schedule(
        f"flash(alpha={float(alpha):g})",
        Swap.FIRST,
        bound,
        (within_bound, served_what_is_trained),
        overdue=Overdue.AWAIT,
    )


def rollart_plus(alpha: float | Fraction = 1) -> Schedule:
    """Variant of `rollart` that neither waits for weight transfers nor aborts stale attempts.

    The batch is trained at once, while the weights of the previous step are pushed and exchanged.
    The next batch waits for the attempts that ROLLART section 6.2 would abort, so that the longest
    trajectory bounds the step time by its length over (1 + alpha). Batches take tasks in the
    order of their source, so that each batch has the same mix as the tasks. Environments of the
    next groups are reset while the attempts before them end, and wait for their admission. A batch
    gives up at most 5% of its groups rather than wait for attempts in place of failed ones.

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
        swap=Swap.BESIDE,
        overdue=Overdue.AWAIT,
        reset_ahead=True,
        selection=in_order,
    )


def sync() -> Schedule:
    """Batch-level synchronous training (Sync in ROLLART section 7.1): `sync_plus` in lockstep.

    The environments of a process step together, and scoring starts once all have ended.
    """
    return replace(sync_plus(), name="sync", barriers=frozenset(Barrier))


def sync_plus() -> Schedule:
    """Synchronous training (Sync+ in ROLLART section 7.1): training suspends rollout."""
    checks = (within_bound, on_policy)
    return Schedule("sync_plus", Swap.AFTER, StalenessPolicy(0), checks)


def one_off() -> Schedule:
    """Train on a batch while the next one is generated (One-off in ROLLART sections 2 and 7.1).

    At most one batch is in flight, and the formed batch takes all of it, so no trajectory spans
    two versions: the behavior policy of a batch is the version before the one that it trains.
    """
    checks = (within_bound, served_at_most_one_behind)
    return Schedule("one_off", Swap.BEFORE, StalenessPolicy(0), checks)


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
        Swap.BEFORE,
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
    `control.rollout.dispatch`).

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
    return replace(sync_plus(), name="hybrid", devices=Devices.SHARED)


_NAMES = (
    "rollart", "flash", "rollart_plus", "sync", "sync_plus", "one_off", "areal", "window", "staged",
    "hybrid",
)  # fmt: skip

SCHEDULES: Registry[Callable[..., Schedule]] = Registry(
    "schedules",
    {name: f"{__name__}:{name}" for name in _NAMES},
    setting="schedule",
    kind=FunctionType,
)


def named_schedule(text: str) -> Schedule:
    """Return the schedule for a text such as "one_off" or "window(8, alpha=2)".

    Any schedule accepts the `SWITCHES`: "sync_plus(queue_scheduling=False)".

    Raises:
        SettingsError: no schedule has that name, its arguments are invalid, or a package's function
            gives no `Schedule`.
    """
    call = parse_call("schedule", text, "one_off or areal(alpha=2)")
    make = SCHEDULES.load(call.name)
    switches = {key: value for key, value in call.keywords.items() if key in SWITCHES}
    others = {key: value for key, value in call.keywords.items() if key not in SWITCHES}
    try:
        schedule = make(*call.arguments, **others)
        if not isinstance(schedule, Schedule):
            raise TypeError(f"the function gives a {type(schedule).__name__}, not a Schedule")
        return schedule.switched(**switches)
    except TypeError as error:
        raise SettingsError(f"schedule {text!r}: {error}") from None
