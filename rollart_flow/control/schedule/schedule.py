"""Schedule: one way to interleave rollout and training, as data.

The AsyncController runs the phases in the order of its `swap`, the scheduler and the buffer use its
`bound`, `admission` and `selection`, and rollout workers use its `barriers`, `group_placement` and
`stages`. Each schedule declares its invariant: `violations` finds the batches that break it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollart_flow.control.schedule.declarations import (
    Barrier,
    Devices,
    GroupPlacement,
    Overdue,
    Phase,
    StageSizes,
    Swap,
)
from rollart_flow.control.schedule.invariants import Check, OrderCheck
from rollart_flow.control.schedule.selection import Admit, Select, by_credits, oldest_first
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.errors import SettingsError
from rollart_flow.types import Batch

Switch = Callable[["Schedule", bool], "Schedule"]
"""Returns a schedule with one declaration set as the switch is on or off."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way to interleave rollout and training.

    Raises:
        SettingsError: stages and the barrier of turns are combined.
    """

    name: str
    swap: Swap
    """Time at which the engines swap to the newest weights."""
    bound: Bound
    checks: tuple[Check, ...]
    """Invariants that must hold for each batch."""
    admission: Admit = by_credits
    """Decision whether one more group may be opened."""
    selection: Select = oldest_first
    """Choice of the complete groups that form a batch."""
    order_checks: tuple[OrderCheck, ...] = ()
    """Invariants over all batches."""
    barriers: frozenset[Barrier] = frozenset()
    """Points at which the attempts of a process wait for one another."""
    overdue: Overdue = Overdue.ABORT
    """Treatment of attempts that would be too old for the next version."""
    reset_ahead: bool = False
    """Whether environments are reset before their group is admitted, as attempts that have ended
    leave room; not with barriers or stages, where what waits would keep others from going on."""
    group_placement: GroupPlacement = GroupPlacement.SPREAD
    """Choice of the inference workers that decode the attempts of a group."""
    stages: StageSizes | None = None
    """Attempts of a process in each stage of a rollout; None means no limit."""
    devices: Devices = Devices.OWN
    """Devices on which the engines compute."""

    def __post_init__(self) -> None:
        if Barrier.TURNS in self.barriers and self.stages is not None:
            raise SettingsError(f"schedule {self.name} is in lockstep, so it can have no stages")

    @property
    def shared(self) -> bool:
        """Whether the engines share their devices with the trainer."""
        return self.devices is Devices.SHARED

    @property
    def resets_ahead(self) -> bool:
        """Whether any environment is reset before its group is admitted."""
        return self.reset_ahead and not self.barriers and self.stages is None

    @property
    def before_training(self) -> tuple[Phase, ...]:
        """Phases between GET_BATCH and TRAIN, which run in `next_batch` or overlap training."""
        order = self.swap.order
        return order[1 : order.index(Phase.TRAIN)]

    @property
    def after_training(self) -> tuple[Phase, ...]:
        """Phases after TRAIN, which run in `trained`."""
        order = self.swap.order
        return order[order.index(Phase.TRAIN) + 1 :]

    def violations(self, batches: Iterable[Batch]) -> tuple[str, ...]:
        """Return the violations of the invariant, one line each; empty if the invariant holds."""
        batches = tuple(batches)
        found = [check(self.bound, batch) for batch in batches for check in self.checks]
        found += [line for check in self.order_checks for line in check(batches)]
        return tuple(line for line in found if line is not None)

    def switched(self, **switches: Any) -> "Schedule":
        """Return the same schedule with some `SWITCHES` set, which its name lists.

        Raises:
            TypeError: there is no such switch.
            SettingsError: a value is neither True nor False, or weights are to be exchanged beside
                training, though the schedule exchanges them before or after it.
        """
        changed, changes = self, {}
        for name, value in switches.items():
            if name not in SWITCHES:
                raise TypeError(f"no switch {name!r}; there are {', '.join(SWITCHES)}")
            if not isinstance(value, bool):
                raise SettingsError(f"{name} is {value!r}, but must be True or False")
            before, changed = changed, SWITCHES[name](changed, value)
            if changed != before:
                changes[name] = value
        return replace(changed, name=_with_arguments(self.name, changes))

    def described(self) -> dict[str, object]:
        """Return the declarations as `run.json` has them in all versions, by name."""
        return {
            "name": self.name,
            "order": self.swap.order,
            "bound": self.bound,
            "checks": self.checks,
            "admission": self.admission,
            "selection": self.selection,
            "order_checks": self.order_checks,
            "lockstep": Barrier.TURNS in self.barriers,
            "overlapped": self.swap is Swap.BESIDE,
            "patient": self.overdue is Overdue.AWAIT,
            "reset_ahead": self.resets_ahead,
            "queue_scheduling": Barrier.ENDS not in self.barriers,
            "prompt_replication": self.group_placement is GroupPlacement.SPREAD,
            "stages": self.stages,
            "shared": self.shared,
        }


def _queue_scheduling(schedule: Schedule, on: bool) -> Schedule:
    ends = frozenset({Barrier.ENDS})
    barriers = schedule.barriers - ends if on else schedule.barriers | ends
    return replace(schedule, barriers=barriers)


def _prompt_replication(schedule: Schedule, on: bool) -> Schedule:
    placement = GroupPlacement.SPREAD if on else GroupPlacement.TOGETHER
    return replace(schedule, group_placement=placement)


def _overlapped(schedule: Schedule, on: bool) -> Schedule:
    fixed = {
        Swap.AFTER: "suspends the rollout while it trains",
        Swap.FIRST: "forms a batch once the engines hold the weights that it trains",
    }
    if schedule.swap not in fixed:
        return replace(schedule, swap=Swap.BESIDE if on else Swap.BEFORE)
    if on:
        raise SettingsError(
            f"schedule {schedule.name} {fixed[schedule.swap]}, "
            "so that weights cannot be exchanged beside training"
        )
    return schedule


def _patient(schedule: Schedule, on: bool) -> Schedule:
    return replace(schedule, overdue=Overdue.AWAIT if on else Overdue.ABORT)


def _reset_ahead(schedule: Schedule, on: bool) -> Schedule:
    return replace(schedule, reset_ahead=on)


SWITCHES: Mapping[str, Switch] = {
    "queue_scheduling": _queue_scheduling,
    "prompt_replication": _prompt_replication,
    "overlapped": _overlapped,
    "patient": _patient,
    "reset_ahead": _reset_ahead,
}
"""Declarations that may be set for any schedule, also in text: see `Schedule.switched`."""


def _with_arguments(name: str, arguments: Mapping[str, object]) -> str:
    """Return a schedule's name with some keyword arguments set."""
    head, _, rest = name.partition("(")
    given = [part for part in rest.rstrip(")").split(", ") if part]
    others = [part for part in given if part.partition("=")[0] not in arguments]
    parts = [*others, *(f"{key}={value}" for key, value in arguments.items())]
    return f"{head}({', '.join(parts)})" if parts else name
