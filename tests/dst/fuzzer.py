"""Runs plans by seed and reports their results, with the commands that repeat them."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from rollart_flow.errors import RollartError
from tests.dst.bugs import planted
from tests.dst.cluster import simulate
from tests.dst.log import Entry
from tests.dst.plans import plan_of
from tests.dst.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one seed."""

    seed: int
    plan: str
    """The plan in one line."""
    error: str | None
    """The broken promise; None if every promise was kept."""
    log: tuple[Entry, ...]
    seconds: float
    """Virtual duration of the run [s]."""
    checks: int
    """Number of the monitor's checks."""
    bug: str | None = None
    gateway: bool = False
    """Whether it was a session of the gateway."""

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return self.error is None

    @property
    def command(self) -> str:
        """The shell command that repeats this run and prints its event log."""
        bug = "" if self.bug is None else f" BUG={self.bug}"
        gateway = " GATEWAY=1" if self.gateway else ""
        return f"make fuzz SEEDS={self.seed}{bug}{gateway}"

    def story(self, last: int | None = None) -> str:
        """The plan, the newest `last` lines of the event log (None: all), and the outcome."""
        entries = self.log if last is None else self.log[-last:]
        skipped = len(self.log) - len(entries)
        lines = [f"seed {self.seed}: {self.plan}"]
        lines += [f"... {skipped} earlier lines"] if skipped else []
        lines += [str(entry) for entry in entries]
        lines.append(self.error or "every promise was kept")
        return "\n".join(lines)


def fuzz(seeds: Iterable[int], *, bug: str | None = None) -> Iterator[Result]:
    """Run the plan of each seed, and yield the results in order.

    Args:
        seeds: seeds of the plans.
        bug: name of a bug to plant (`bugs.BUGS`), to see it found.

    Raises:
        SettingsError: there is no bug with this name.
    """
    with nullcontext() if bug is None else planted(bug):
        for seed in seeds:
            yield _result(seed, bug)


def _result(seed: int, bug: str | None) -> Result:
    plan = plan_of(seed)
    world = World(plan)
    error = None
    try:
        simulate(plan, world)
    except Exception as failure:  # noqa: BLE001  any failure of a run is a finding
        found = world.monitor.error or failure  # a broken run may fail again while it is ended
        name = "" if isinstance(found, RollartError) else f"{type(found).__name__}: "
        error = f"{name}{found}"
    return Result(
        seed=seed,
        plan=str(plan),
        error=error,
        log=tuple(world.log.entries),
        seconds=world.log.entries[-1].time_s if world.log.entries else 0.0,
        checks=world.monitor.checks,
        bug=bug,
    )
