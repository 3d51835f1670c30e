"""A stored run as a scenario: its own attempts, engines and trainer under another schedule.

The control plane runs as it is; what it waits for comes from the tables:

- Attempts are those of the run, group by group in their order: lengths, turns, environment times,
  failures. What was cut off from outside (stale, redundant, cancelled) is left out, since nobody
  knows how it would have ended; where much was cut off, long ones are missing.
- A launch is what passes between two starts while there is credit and room: a source hands out
  attempts one by one, and on a small machine this is what limits rollout.
- A request takes a time of its own, by its new tokens, and a pass for each token that it draws,
  which takes longer with more sequences; least squares over all turns.
- Reward and commit: the least that they took, and then commits that take along what is there.
- A step takes its trainer a fixed time and a time per token, times what that step deviated by. All
  that is neither waiting for trajectories nor the exchange of weights counts: the manifest, the
  way of the batch, publishing, checkpoints.
- Training and attempts slow each other down by as much as steps and turns took longer, the more of
  their time they shared. The run's last step, beside which nothing is rolled out, tells most.

The step time of a prediction is what these make of one another under the schedule; nothing is
scaled to meet the measured one.

What it cannot know: how training and attempts disturb each other in a run where they always
overlapped or never did (then it takes them not to); whether a machine has room for more engines (a
worker more is as fast as those that were there); what batches of another size cost beyond the line
through batches that were alike; memory for KV caches; groups that a filter refuses. A window's
waits count as launches. What else the machine did at the time is in the figures, evaluation
included. On the demo, whose processes share two cores, seven runs predicted themselves within 6%;
runs under alpha 1 took `sync_plus` to be 17 to 60% slower than it was, and the reverse took alpha 1
to be a fifth faster: of what disturbs whom, such a run shows too little.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rollart_flow.control.schedule.schedules import Schedule, named_schedule, rollart
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.hardware import Device, LanguageModel
from rollart_flow.simulation.measured import Measured
from rollart_flow.simulation.report.report import warmup_of
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.stored.fitting import measure
from rollart_flow.simulation.stored.tables import Tables, read_tables
from rollart_flow.store import Run

LEAST_STEPS = 3
_UNKNOWN = float("nan")


@dataclass(frozen=True)
class Recorded:
    """A stored run, ready for `simulate(recorded.scenario, recorded.schedule, ...)`."""

    scenario: Scenario
    schedule: Schedule
    steps: int
    """Steps of the run; as many make a prediction comparable, since the last one trains alone."""
    measured_step_s: float
    """Mean step time after the warm-up."""

    def changed(
        self,
        *,
        alpha: float | Fraction | None = None,
        schedule: Schedule | None = None,
        redundancy: int | None = None,
        engines: int | None = None,
        environments: int | None = None,
        batch_size: int | None = None,
    ) -> "Recorded":
        """The same attempts under other settings; None leaves a setting as it was.

        Args:
            alpha: of `rollart(alpha)`.
            schedule: in place of the run's.
            redundancy: extra attempts per group.
            engines: inference workers of each hardware class.
            environments: that run at once.
            batch_size: trajectories per step.

        Raises:
            SettingsError: names what does not fit.
        """
        if alpha is not None and schedule is not None:
            raise SettingsError("alpha and schedule both name a schedule; give one of them")
        for name, value in (("engines", engines), ("environments", environments)):
            if value is not None and value < 1:
                raise SettingsError(f"{name} is {value}, but must be at least 1")
        was = self.scenario
        scenario = replace(
            was,
            redundancy=was.redundancy if redundancy is None else redundancy,
            environments=environments or was.environments,
            batch_size=was.batch_size if batch_size is None else batch_size,
            measured=was.measured if engines is None else _with_engines(was, engines),
        )
        under = rollart(alpha) if alpha is not None else schedule or self.schedule
        return replace(self, scenario=scenario, schedule=under)


def _with_engines(scenario: Scenario, count: int) -> Measured:
    assert scenario.measured is not None, "of a stored run"
    workers = tuple((engine, count) for engine, _ in scenario.measured.engines)
    return replace(scenario.measured, engines=workers)


def recorded_scenario(run: Run) -> Recorded:
    """Read a run's latencies, lengths and settings.

    Raises:
        SettingsError: it has too few steps, or lacks what a prediction needs; says which.
    """
    info = run.info
    nodes = _nodes(info.settings, info.name)
    schedule = _schedule(nodes["buffer"])
    batch_size, group_size = nodes["buffer"]["batch_size"], nodes["tasks"]["group_size"]
    rollout = nodes["rollout"]
    tables = read_tables(run.snapshot(), info.name, schedule, LEAST_STEPS)
    groups = schedule.bound.capacity(batch_size) // group_size + rollout["extra_groups"]
    environments = _environments(rollout)
    slots = environments or groups * (group_size + rollout["redundancy"])
    measured = measure(tables, limit=groups, slots=slots)
    scenario = Scenario(
        name=info.name,
        # Shapes and devices are not asked for: what they would tell is measured.
        model=LanguageModel("stored", tables.weight_bytes / 2, 0, 0, 0, 0),
        domains=(),
        rollout=(),
        training=Pool(Device("trainer", *[_UNKNOWN] * 5), tables.trainers),
        batch_size=batch_size,
        group_size=group_size,
        hw_affinity=dict(tables.affinity) if len(measured.engines) > 1 else {},
        redundancy=rollout["redundancy"],
        extra_groups=rollout["extra_groups"],
        environments=environments,
        step_timeout_s=float("inf"),
        commit_s=0.0,
        measured=measured,
    )
    return Recorded(scenario, schedule, len(tables.steps), _mean_step_s(tables, schedule))


def _nodes(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Settings of the nodes by kind."""
    nodes = {node.get("kind"): node for node in settings.get("nodes", {}).values()}
    if missing := [kind for kind in ("tasks", "rollout", "buffer") if kind not in nodes]:
        raise SettingsError(f"run {name} names no {missing[0]} in its settings")
    return nodes


def _schedule(buffer: Mapping[str, Any]) -> Schedule:
    """The schedule that a run was made under; without one, its alpha tells it."""
    said = buffer.get("schedule")
    return rollart(buffer["alpha"]) if said is None else named_schedule(said["name"])


def _environments(rollout: Mapping[str, Any]) -> int | None:
    """Attempts that ran at most at once; None: as many as the bound lets."""
    most = rollout["max_concurrent"]
    return None if most is None else int(most * rollout["workers"])


def _mean_step_s(tables: Tables, schedule: Schedule) -> float:
    warmup = min(warmup_of(schedule), len(tables.steps) - 1)
    seconds = [step.step_s for step in tables.steps[warmup:]]
    return sum(seconds) / len(seconds)
