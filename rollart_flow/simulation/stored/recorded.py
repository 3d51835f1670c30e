"""A stored run as a scenario: its own attempts, engines and trainer under another schedule.

The real control plane runs; the times that it waits for come from the tables:

- Attempts are the attempts of the run, group by group in their order: lengths, turns, environment
  times, failures. Attempts that were cut off (stale, redundant, cancelled) are left out, since
  their ends are unknown; if many were cut off, long attempts are missing.
- A launch is the time between two starts while there is credit and room: a source hands out
  attempts one by one, which limits rollout on a small machine.
- A request takes a fixed time, a time per new token, and one pass per sampled token, which takes
  longer with more sequences, those included that sample their first token; least squares over all
  turns after the warm-up.
- Reward and commit take the least time that was measured, followed by commits of all trajectories
  that have arrived.
- A training step has a computation and a part apart: the manifest, the transfer of the batch,
  publishing, checkpoints, which neither tokens nor attempts change. On a CPU the computation takes
  the time of its work, counted as the trainer packs the run's own rows into batches of several
  sizes; elsewhere a fixed time and a time per token. It is multiplied by the deviation of that
  step.
- Training on CPUs is slowed down by attempts twice: the same work takes more CPU seconds, and its
  thread waits; both are measured by how much of its time each step shared. Engines and launches of
  the same process are slowed down by training as much, since their threads share its cores, caches
  and interpreter. Elsewhere training and engines are slowed down by as much as steps and turns took
  longer: the run's last step, beside which nothing is rolled out, shows most.

The step time of a prediction follows from these under the schedule; nothing is scaled to agree with
the measured one.

`docs/simulation.md` lists the limits of a prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import named_schedule, rollart
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.hardware import Device, SimulatedModel
from rollart_flow.simulation.measured import Measured
from rollart_flow.simulation.report.report import warmup_of
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.stored.fitting import measure
from rollart_flow.simulation.stored.tables import read_tables
from rollart_flow.simulation.stored.training_work import read_work
from rollart_flow.store import Run

LEAST_STEPS = 3
_UNKNOWN = float("nan")


@dataclass(frozen=True)
class Recorded:
    """A stored run, ready for `simulate(recorded.scenario, recorded.schedule, ...)`."""

    scenario: Scenario
    schedule: Schedule
    steps: int
    """Steps of the run. A prediction needs as many to be comparable: the last step trains alone."""
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

        `engines` counts inference workers of each hardware class, `environments` those that run at
        once. Raises SettingsError if a value does not fit.
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
    """Read a run's latencies, lengths and settings; SettingsError if the run lacks some."""
    info = run.info
    nodes = _nodes(info.settings, info.name)
    said = nodes["buffer"].get("schedule")
    schedule = rollart(nodes["buffer"]["alpha"]) if said is None else named_schedule(said["name"])
    batch_size, group_size = nodes["buffer"]["batch_size"], nodes["tasks"]["group_size"]
    rollout = nodes["rollout"]
    snapshot = run.snapshot()
    tables = read_tables(snapshot, info.name, schedule, LEAST_STEPS)
    groups = schedule.bound.capacity(batch_size) // group_size + rollout["extra_groups"]
    most = rollout["max_concurrent"]
    environments = None if most is None else int(most * rollout["workers"])
    slots = environments or groups * (group_size + rollout["redundancy"])
    work = read_work(snapshot, nodes["train"])
    measured = measure(tables, work, limit=groups, slots=slots)
    scenario = Scenario(
        name=info.name,
        # Shapes and devices are never read: all times are measured.
        model=SimulatedModel("stored", tables.weight_bytes / 2, 0, 0, 0, 0),
        domains=(),
        rollout=(),
        training=Pool(Device("trainer", *[_UNKNOWN] * 4), tables.trainers),
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
    warmup = min(warmup_of(schedule), len(tables.steps) - 1)
    seconds = [step.step_s for step in tables.steps[warmup:]]
    return Recorded(scenario, schedule, len(tables.steps), sum(seconds) / len(seconds))


def _nodes(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Settings of the pipeline's nodes by kind."""
    nodes = {node.get("kind"): node for node in settings.get("nodes", {}).values()}
    if missing := [kind for kind in ("tasks", "rollout", "buffer", "train") if kind not in nodes]:
        raise SettingsError(
            f"run {name} has no {missing[0]} node in its settings; a prediction needs one"
        )
    return nodes
