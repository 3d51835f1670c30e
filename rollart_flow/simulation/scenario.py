"""A scenario: the hardware, the workload and the sizes that schedules are compared on.

A scenario is a frozen description that is checked when it is made; `simulate` runs it. The
invariant: a scenario contains nothing of a schedule, so that every schedule can be simulated on
every scenario.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollart_flow.control.inference.profiler import AUTO
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.hardware import (
    Device,
    EngineCosts,
    EngineModel,
    Roofline,
    SimulatedModel,
    TrainingCost,
)
from rollart_flow.simulation.measured import Measured, RecordedGroup, RecordedWorkload
from rollart_flow.simulation.transfers import MOONCAKE, WeightTransfer
from rollart_flow.simulation.workloads import Attempts, SimulatedDomain, Workload
from rollart_flow.types import Sampling

RULE_S = 0.05
"""Time of a rule or a small program [s]; assumed."""


@dataclass(frozen=True, slots=True)
class Serverless:
    """Instances of the reward model on demand (ROLLART sections 5.2 and 7.3)."""

    judge: Roofline
    """The reward model on one instance."""
    cold_start_s: float = 5.0
    """Time until a new instance answers; assumed, with the model in a snapshot (ServerlessLLM)."""
    keep_alive_s: float = 60.0
    """Time after which an idle instance ends [s]."""
    call_s: float = 0.01
    """Transfer of one call: 0.01 s on average, at most 2.1 s (ROLLART section 7.5)."""
    verdict_tokens: int = 16
    """Tokens of the judge's answer, which is a score. With so few, four devices are as idle as
    ROLLART Figure 6 shows them (7.4%)."""
    concurrency: int = 8
    """Calls that one instance serves side by side; assumed."""


@dataclass(frozen=True, slots=True)
class Dedicated:
    """Devices that only the reward model uses (ROLLART section 3.1, Figure 6)."""

    judge: Roofline
    workers: int
    verdict_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one kind."""

    device: Device
    devices: int


@dataclass(frozen=True, slots=True)
class PrefillDecode:
    """Prefill and decode on separate workers (xPyD; ROLLART section 6.3)."""

    prefill: Pool
    decode: Pool
    degree: int
    """Tensor-parallel degree of both kinds of workers."""
    link_gb_s: float = 25.0
    """Link for KV caches between them, per worker [GB/s]; 200 Gbps (ROLLART section 7.1)."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A span of time in which no environment starts: images cannot be pulled, nodes are full."""

    begins_s: float
    """From the beginning of the simulation [s]."""
    seconds: float


@dataclass(frozen=True)
class Scenario:
    """Hardware, workload and sizes of a simulation; SettingsError if they do not fit together."""

    name: str
    model: SimulatedModel
    domains: tuple[SimulatedDomain, ...]
    rollout: tuple[Pool, ...]
    training: Pool
    batch_size: int
    group_size: int
    tensor_parallel: int = 1
    """Tensor-parallel degree of each inference worker."""
    shared: bool = False
    """Whether rollout and training take turns on the same devices, those of `training`."""
    switch_s: float = 40.0
    """Switching between serving and training and back, where they take turns [s]. With this value a
    step of ROLLART Figure 3 spends the share on training that the figure shows (23% of 366 s)."""
    sliding: int = 0
    """Devices of `training` that serve inference whenever training waits for a batch (ROLL's
    train-rollout multiplexing)."""
    disaggregated: PrefillDecode | None = None
    """Separate prefill and decode workers in place of `rollout`."""
    hw_affinity: Mapping[str, str] | Literal["auto"] = field(default_factory=dict, hash=False)
    """Hardware class by domain, "default" for the others; empty: any class. "auto": a profiler in
    each rollout worker finds the classes."""
    costs: Mapping[str, EngineCosts] = field(default_factory=dict, hash=False)
    """Costs of the engine by hardware class; the defaults for the others."""
    redundancy: int = 0
    extra_groups: int = 0
    environments: int | None = None
    """Environments that run at once; None: as many as the schedule may have in flight."""
    context_tokens: int = 32_768
    reward: Serverless | Dedicated | None = None
    """Hardware of the reward model, or None if rules score."""
    transfer: WeightTransfer = MOONCAKE
    training_cost: TrainingCost | None = None
    """Times of training steps; None: by the arithmetic of the model."""
    epochs: int = 1
    step_timeout_s: float = 600.0
    """Limit of a reset and of a step of an environment [s]."""
    outages: tuple[Outage, ...] = ()
    """Resets that begin in one of these wait for its end first, whatever their domain; those that
    wait for longer than `step_timeout_s` fail, and with many in a row the run."""
    branches: int = 1
    """Most branches of an attempt, each a row of its own; every attempt has 1 to so many, drawn
    with the seed."""
    zero_variance_filter: bool = False
    """Whether groups with equal rewards are refused (DAPO's dynamic sampling)."""
    commit_s: float = 0.2
    """Time from the reward to the buffer [s]; measured on one machine."""
    score_s: float = RULE_S
    """Time of a reward that a rule or a small program computes [s]."""
    groups: tuple[RecordedGroup, ...] = ()
    """Groups of attempts of a stored run, in place of those of `domains`."""
    measured: Measured | None = None
    """A stored run in place of `domains`, `rollout`, `transfer`, `training_cost` and `commit_s`."""

    def __post_init__(self) -> None:
        self.settings()
        if self.branches < 1:
            raise SettingsError(f"scenario {self.name}: branches is {self.branches}; at least 1")
        if isinstance(self.hw_affinity, str) and self.hw_affinity != AUTO:
            raise SettingsError(
                f"scenario {self.name}: hw_affinity is {self.hw_affinity!r}, but must be a "
                f"hardware class by domain or {AUTO!r}"
            )
        for outage in self.outages:
            if not (outage.begins_s >= 0 and 0 < outage.seconds < float("inf")):
                raise SettingsError(
                    f"scenario {self.name}: an outage begins at {outage.begins_s:g} s and lasts "
                    f"{outage.seconds:g} s; it needs a beginning of 0 or later, and an end"
                )
        self._check_costs()
        if not self.workers():
            raise SettingsError(f"scenario {self.name}: no devices for rollout")
        for worker, _ in self.workers():
            if worker.kv_tokens < self.context_tokens:
                raise SettingsError(
                    f"scenario {self.name}: {self.model.name} on {worker.devices} "
                    f"{worker.hardware} has room for {max(0, worker.kv_tokens)} tokens, but "
                    f"a trajectory may have {self.context_tokens}; raise tensor_parallel"
                )

    def _check_costs(self) -> None:
        """Refuse costs of a hardware class that no device of the scenario has."""
        if unknown := sorted(self.costs.keys() - set(self.classes)):
            raise SettingsError(
                f"scenario {self.name}: costs has {', '.join(unknown)}, but the devices are "
                f"{' and '.join(self.classes)}"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Hardware classes of all devices, in order of their names."""
        pools = {*self.rollout, self.training}
        if self.disaggregated is not None:
            pools |= {self.disaggregated.prefill, self.disaggregated.decode}
        return tuple(sorted({pool.device.name for pool in pools}))

    def settings(self, seed: int = 0) -> RolloutSettings:
        """Settings of the rollout scheduler."""
        return RolloutSettings(
            self.batch_size,
            self.group_size,
            redundancy=self.redundancy,
            extra_groups=self.extra_groups,
            # One environment at least is left to attempts that others wait for.
            ahead=None if self.environments is None else self.environments - 1,
            seed=seed,
            refusals=1 << 30,
            history=1 << 16,
            sampling=Sampling(max_tokens=self.context_tokens),
        )

    def workers(self) -> tuple[tuple[EngineModel, int], ...]:
        """Inference workers, as pairs of their times and their number."""
        if self.measured is not None:
            return self.measured.engines
        if self.disaggregated is not None:
            parts: tuple[Pool, ...] = (self.disaggregated.prefill, self.disaggregated.decode)
            degree = self.disaggregated.degree
        else:
            parts = (self.training,) if self.shared else self.rollout
            degree = self.tensor_parallel
        found: list[tuple[EngineModel, int]] = []
        for pool in parts:
            if pool.devices % degree:
                raise SettingsError(
                    f"scenario {self.name}: {pool.devices} {pool.device.name} cannot be divided "
                    f"into workers of {degree}"
                )
            found.append((self.roofline(pool.device, degree), pool.devices // degree))
        return tuple(found)

    def roofline(self, device: Device, degree: int) -> Roofline:
        """The times of one inference worker on `degree` devices."""
        costs = self.costs.get(device.name, EngineCosts())
        return Roofline(self.model, device, degree, costs)

    def training_s(self, lengths: list[int]) -> float:
        """Time of a training step over trajectories of these lengths, alone on the machine [s]."""
        if self.measured is not None:
            return self.measured.training.work_s(sum(lengths))
        seconds = self.cost.step_s(lengths, self.training.devices, self.epochs)
        return seconds + (self.switch_s if self.shared else 0.0)

    @property
    def cost(self) -> TrainingCost:
        """Times of training steps."""
        return self.training_cost or TrainingCost(self.model, self.training.device)

    @property
    def push_s(self) -> float:
        """Transfer from the training workers to the store [s]; measured steps include it."""
        return 0.0 if self.measured is not None else self.transfer.push_s(self.model)

    @property
    def pull_s(self) -> float:
        """Sum of the pulls of a version over all workers [s]."""
        if self.measured is not None:
            return 0.0
        return self.transfer.pull_s(self.model, self.tensor_parallel)

    @property
    def exposed_s(self) -> float:
        """The part of the pulls that no rollout can hide [s]."""
        if self.measured is not None:
            return self.measured.exchange_s
        return self.transfer.exposed_s(self.model, self.tensor_parallel)

    def outage_s(self, now: float) -> float:
        """Time until environments start again, 0 outside of outages [s]."""
        ends = [each.begins_s + each.seconds for each in self.outages if each.begins_s <= now]
        return max(0.0, max(ends, default=0.0) - now)

    def workload(self, seed: int) -> Attempts:
        """The tasks and scripts of a run."""
        if self.measured is not None:
            return RecordedWorkload(self.measured.groups, seed)
        if self.groups:
            return RecordedWorkload(self.groups, seed)
        return Workload(self.domains, seed, self.context_tokens)

    def slots(self, schedule: Schedule) -> int:
        """Environments that run at once."""
        if self.environments is not None:
            return self.environments
        groups = schedule.bound.capacity(self.batch_size) // self.group_size + self.extra_groups
        return groups * (self.group_size + self.redundancy)
