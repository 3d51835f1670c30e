"""One way to give the devices of a cluster to the stages of a pipeline.

The invariant: an allocation is what the pipeline's settings can express. There are as many engine
workers on each class that a domain is bound to, and the trainer is on the class that a run would
choose for it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.engines.registry import engine_capabilities
from rollart_flow.pipeline.graph import Graph
from rollart_flow.resources.classes import KINDS, Kind
from rollart_flow.simulation.planning.demand import Demand
from rollart_flow.simulation.planning.devices import CPU, DEVICES
from rollart_flow.simulation.scenario import Pool, PrefillDecode, Scenario
from rollart_flow.trainers.registry import many_ranks_trainer, trainer_capabilities


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices and settings of a pipeline's stages."""

    affinity: tuple[tuple[str, str], ...]
    """(domain, resource class of its generation), for each domain."""
    workers: int
    """Engine workers of each class of `affinity`."""
    units: int
    """Devices of one engine worker."""
    trainer: str
    """Resource class of the trainer."""
    ranks: int
    schedule: Schedule
    redundancy: int
    prefill: int = 0
    """Workers that compute prompts for the others, of the class `trainer`."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the engine workers, each once."""
        return tuple(dict.fromkeys(name for _, name in self.affinity))

    @property
    def devices(self) -> Mapping[str, int]:
        """Devices that the stages occupy, by class."""
        found = Counter(dict.fromkeys(self.classes, self.workers * self.units))
        found[self.trainer] += self.ranks + self.prefill * self.units
        return {name: count for name, count in found.items() if count}

    def fits(self, hardware: Mapping[str, int]) -> bool:
        """Whether a cluster has the devices, and would place the trainer as assumed here."""
        used = self.devices
        if any(count > hardware.get(name, 0) for name, count in used.items()):
            return False
        free = {name: count - used.get(name, 0) for name, count in hardware.items()}
        free[self.trainer] += self.ranks
        return self.trainer in trainer_classes(free)[:1]

    def scenario(self, pipeline: Graph, demand: Demand) -> Scenario:
        """The simulation of a pipeline under this allocation; SettingsError if it cannot be."""
        rollout, buffer = pipeline.rollout, pipeline.buffer
        most = rollout.max_concurrent
        environments = None if most is None else most * rollout.workers
        if self.trainer == CPU:
            assert demand.recorded is not None, "CPUs have no model"
            own = replace(
                demand.recorded.scenario,
                batch_size=buffer.batch_size,
                group_size=pipeline.tasks.group_size,
                environments=environments,
            )
            return (
                replace(demand.recorded, scenario=own)
                .changed(redundancy=self.redundancy, engines=self.workers)
                .scenario
            )
        pools = tuple(Pool(DEVICES[name], self.workers * self.units) for name in self.classes)
        apart = None
        if self.prefill:
            prompts = Pool(DEVICES[self.trainer], self.prefill * self.units)
            apart = PrefillDecode(prompts, pools[0], self.units)
        return Scenario(
            name=pipeline.name,
            model=demand.model,
            domains=demand.domains,
            groups=demand.groups,
            rollout=() if apart else pools,
            training=Pool(DEVICES[self.trainer], self.ranks),
            batch_size=buffer.batch_size,
            group_size=pipeline.tasks.group_size,
            tensor_parallel=self.units,
            disaggregated=apart,
            hw_affinity={} if apart else dict(self.affinity),
            redundancy=self.redundancy,
            extra_groups=rollout.extra_groups,
            environments=environments,
            context_tokens=demand.context_tokens,
            epochs=demand.epochs,
            score_s=demand.score_s,
        )

    def settings(self, pipeline: Graph) -> dict[str, str]:
        """The allocation as settings of a pipeline, texts by key."""
        rollout, train, buffer = pipeline.rollout, pipeline.train, pipeline.buffer
        found = {
            f"{rollout.name}.engine_workers": str(self.workers),
            f"{rollout.name}.redundancy": str(self.redundancy),
        }
        if buffer.schedule.name != self.schedule.name:
            found[f"{buffer.name}.schedule"] = self.schedule.name
        if self.trainer == CPU:
            return found
        found[f"{rollout.name}.hw_affinity"] = json.dumps(self._affinity())
        found[f"{rollout.name}.engine_units"] = str(self.units)
        found[f"{train.name}.ranks"] = str(self.ranks)
        if self.ranks > 1 and not trainer_capabilities(train.backend).many_ranks:
            found[f"{train.name}.backend"] = many_ranks_trainer()
        if self.prefill or rollout.prefill_workers:
            found[f"{rollout.name}.prefill_workers"] = str(self.prefill)
        if self.prefill:
            found[f"{rollout.name}.prefill_affinity"] = self.trainer
        policy = pipeline.policy
        if policy.device == "cpu" and engine_capabilities(policy).follows_policy_device:
            found["policy.device"] = "cuda"
        return found

    def _affinity(self) -> dict[str, str]:
        """The classes by domain, the most frequent one as the default."""
        default = Counter(name for _, name in self.affinity).most_common(1)[0][0]
        own = {domain: name for domain, name in self.affinity if name != default}
        return {**own, "default": default}


def trainer_classes(free: Mapping[str, int]) -> list[str]:
    """The classes that a run would place its trainer on, the first choice first.

    Args:
        free: number of devices that no engine occupies, by class.
    """
    for kind in (Kind.COMPUTE, Kind.BANDWIDTH, Kind.CPU):
        names = [name for name in free if KINDS.get(name) is kind]
        if names:
            return sorted(names, key=lambda name: (free[name], name), reverse=True)
    return []
