"""Proposals for a pipeline on some hardware: closed forms first, then simulations around the best.

The number of simulations follows from the size of the workload, so that proposals are a function of
pipeline, hardware, run and seeds. A time limit may end the search before; the result says so.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import rollart, sync_plus
from rollart_flow.errors import PipelineError, RunFailedError, SettingsError
from rollart_flow.pipeline.graph import Graph
from rollart_flow.simulation.planning.allocation import Allocation
from rollart_flow.simulation.planning.candidates import affinities, least_ranks, sized, splits_of
from rollart_flow.simulation.planning.demand import Demand, mean_turns
from rollart_flow.simulation.planning.devices import CPU
from rollart_flow.simulation.planning.proposal import Proposal, Sampled, preferred, proposal_of
from rollart_flow.simulation.planning.splits import DeviceSplit
from rollart_flow.simulation.report.comparison import Case, measure, simulate_case

STEPS = 4
_TURNS = 60_000
"""Turns of all simulations of a search together, about: some ten seconds."""
_LEAST, _MOST = 8, 24
"""Limits of the number of simulations of a search."""
_FINALISTS = 4
_ATTEMPTS = 128

OnDone = Callable[[int, int], None]
"""Receives the number of simulations that are done, and of all that are planned."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """The result of a search."""

    proposals: tuple[Proposal, ...]
    """The chosen one first, then by step time."""
    simulated: int
    """Number of simulations."""
    cut: bool
    """Whether the time limit ended the search."""


@dataclass
class PlanSearch:
    """One search; `run` does it."""

    pipeline: Graph
    hardware: Mapping[str, int]
    demand: Demand
    prices: Mapping[str, float]
    seeds: int
    limit_s: float
    on_done: OnDone = lambda done, planned: None
    _reports: dict[Allocation, list[Sampled]] = field(default_factory=dict)
    _done: int = 0
    _cut: bool = False

    def run(self) -> Proposals:
        """Search, and return the best proposals.

        Raises:
            SettingsError: the hardware has no room for the model, or no allocation can be run.
        """
        self._began = time.monotonic()
        scripts = self.demand.scripts(0, _ATTEMPTS)
        buffer = self.pipeline.buffer
        self._split = DeviceSplit(self.demand.model, buffer.batch_size, scripts, self.demand.epochs)
        turns = STEPS * buffer.batch_size * mean_turns(scripts)
        first = max(_LEAST, min(_MOST, int(_TURNS / turns)))
        self._planned = first + _FINALISTS * (self.seeds - 1)
        self._try(self._starts()[: first // 3], first)
        if not self._reports:
            raise SettingsError("no allocation of this hardware can be simulated")
        while self._done < first and self._try(self._beside(self._best(1)[0].allocation), first):
            pass
        finalists = [each.allocation for each in self._best(_FINALISTS)]
        for seed in range(1, self.seeds):
            for allocation in finalists:
                self._simulate(allocation, seed)
        ranked = [self._proposal(each) for each in finalists]
        return Proposals(preferred(ranked), self._done, self._cut)

    def _starts(self) -> list[Allocation]:
        """Allocations of the file's schedule, the best by closed form first."""
        if self.hardware.keys() == {CPU}:
            return [self._on_cpus(count) for count in self._engine_counts()]
        found: dict[Allocation, float] = {}
        for affinity in affinities(self.hardware, self.demand):
            for plain in sized(self.pipeline, self.hardware, self.demand, affinity):
                for one in splits_of(plain, self.pipeline, self.hardware, self.demand, self._split):
                    found[one] = self._split.step_s(one)
        return sorted(found, key=lambda one: (found[one], one.workers, one.affinity))

    def _engine_counts(self) -> list[int]:
        own, most = self.pipeline.rollout.engine_workers, self.hardware[CPU]
        counts = [own, 1, 2, 4, 8, 16, most]
        return list(dict.fromkeys(count for count in counts if count <= most))

    def _on_cpus(self, engines: int) -> Allocation:
        names = self.pipeline.tasks.domain_names
        return Allocation(
            affinity=tuple((name, CPU) for name in names),
            workers=engines,
            units=1,
            trainer=CPU,
            ranks=0,
            schedule=self.pipeline.buffer.schedule,
            redundancy=self.pipeline.rollout.redundancy,
        )

    def _beside(self, best: Allocation) -> list[Allocation]:
        """The neighbours of an allocation: other schedules, redundancy, splits and prefill."""
        group = self.pipeline.tasks.group_size
        near = [replace(best, schedule=each) for each in self._schedules()]
        near += [replace(best, redundancy=n) for n in dict.fromkeys((0, 1, max(1, group // 4)))]
        if best.trainer != CPU:
            splits = splits_of(best, self.pipeline, self.hardware, self.demand, self._split)
            near = [*self._smaller(best), *_disaggregated(best), *near, *splits]
        return [one for one in near if one.trainer == CPU or self._has_room(one)]

    def _smaller(self, best: Allocation) -> Iterator[Allocation]:
        """Cheaper allocations: with fewer ranks, or with fewer workers."""
        least = least_ranks(best.trainer, self.demand)
        for share in (0.0, 0.25, 0.5, 0.75):
            yield replace(best, ranks=max(least, math.floor(best.ranks * share)))
            yield replace(best, workers=max(1, math.floor(best.workers * share)))

    def _has_room(self, one: Allocation) -> bool:
        return one.fits(self.hardware) and one.ranks >= least_ranks(one.trainer, self.demand)

    def _schedules(self) -> tuple[Schedule, ...]:
        return (self.pipeline.buffer.schedule, sync_plus(), rollart(1), rollart(2))

    def _try(self, allocations: Iterable[Allocation], most: int) -> bool:
        """Simulate allocations that were not yet, up to `most` in all; whether there were any."""
        tried = False
        for allocation in allocations:
            if allocation not in self._reports and self._done < most and self._accepted(allocation):
                tried |= self._simulate(allocation, 0)
        return tried

    def _accepted(self, allocation: Allocation) -> bool:
        """Whether the pipeline takes the settings of an allocation."""
        from rollart_flow.pipeline.overrides import override

        try:
            override(self.pipeline, allocation.settings(self.pipeline))
        except (PipelineError, SettingsError):
            return False
        return True

    def _simulate(self, allocation: Allocation, seed: int) -> bool:
        """Simulate an allocation; False if it cannot be, or no time is left."""
        if self._reports and time.monotonic() - self._began > self.limit_s:
            self._cut = True
            return False
        try:
            scenario = allocation.scenario(self.pipeline, self.demand)
            steps = (
                self.demand.recorded.steps
                if allocation.trainer == CPU and self.demand.recorded
                else STEPS
            )
            case = Case(scenario, allocation.schedule, seed, steps)
            record = simulate_case(case)
        except (SettingsError, RunFailedError):
            return False
        self._done += 1
        self.on_done(self._done, self._planned)
        found = Sampled(scenario, measure(case, record).report, record)
        self._reports.setdefault(allocation, []).append(found)
        return True

    def _best(self, count: int) -> list[Proposal]:
        """The preferred one of the simulated allocations, then those with the shortest steps."""
        return list(preferred([self._proposal(each) for each in self._reports]))[:count]

    def _proposal(self, allocation: Allocation) -> Proposal:
        return proposal_of(allocation, self._reports[allocation], self.prices)


def _disaggregated(best: Allocation) -> Iterator[Allocation]:
    """Allocations that compute prompts on workers of their own, for one class of engines."""
    if len(best.classes) > 1 or best.prefill:
        return
    for share in (4, 2):
        prefill = best.workers // share
        if prefill and best.classes == (best.trainer,):
            yield replace(best, workers=best.workers - prefill, prefill=prefill)
        elif prefill and best.ranks > prefill * best.units:
            yield replace(best, ranks=best.ranks - prefill * best.units, prefill=prefill)
