"""Runs plans by seed and says which fail, with what is needed to look at them again."""

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
    """What became of one seed."""

    seed: int
    plan: str
    """In one line."""
    error: str | None
    """What was broken; None where every promise was kept."""
    log: tuple[Entry, ...]
    seconds: float
    """Virtual."""
    checks: int
    """Times that the monitor looked."""
    bug: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return self.error is None

    @property
    def command(self) -> str:
        """The shell command that repeats this run and prints its event log."""
        bug = "" if self.bug is None else f" BUG={self.bug}"
        return f"make fuzz SEEDS={self.seed}{bug}"

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
    """Run the plan of each seed; one result each, in order.

    Args:
        seeds: what to run.
        bug: name of a bug to plant (`bugs.BUGS`), to see it found.

    Raises:
        SettingsError: there is no such bug.
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
    except Exception as failure:  # noqa: BLE001  whatever a run dies of is what is looked for
        name = "" if isinstance(failure, RollartError) else f"{type(failure).__name__}: "
        error = f"{name}{failure}"
    return Result(
        seed=seed,
        plan=str(plan),
        error=error,
        log=tuple(world.log.entries),
        seconds=world.log.entries[-1].time_s if world.log.entries else 0.0,
        checks=world.monitor.checks,
        bug=bug,
    )
