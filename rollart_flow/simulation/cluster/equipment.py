"""Builds the inference workers and the scoring that a scenario describes.

The invariant: all hardware of a scenario is built here, and nothing depends on a schedule.
"""

from typing import Protocol

from rollart_flow.control.protocols import Inference
from rollart_flow.simulation.cluster.workers import SimulatedWorkers
from rollart_flow.simulation.hardware import EngineModel, Roofline
from rollart_flow.simulation.models.disaggregated import DisaggregatedEngine
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.simulation.models.scoring import (
    DedicatedScoring,
    MeasuredScoring,
    RuleScoring,
    Scoring,
    ServerlessScoring,
)
from rollart_flow.simulation.scenario import Dedicated, Scenario, Serverless


class MakeEngine(Protocol):
    """A factory of inference workers; `stored`: their prefixes lie in a store beside them."""

    def __call__(self, name: str, model: EngineModel, *, stored: bool) -> SimulatedEngine: ...


def make_workers(scenario: Scenario, make: MakeEngine) -> tuple[SimulatedWorkers, list[Inference]]:
    """All inference workers, and those of them that requests go to."""
    parts = scenario.disaggregated
    engines: list[SimulatedEngine] = []
    for part, (model, count) in enumerate(scenario.workers()):
        first = len(engines)
        stored = parts is not None and part == 0
        engines += [
            make(f"{model.hardware}-{first + i:04d}", model, stored=stored) for i in range(count)
        ]
    count = scenario.sliding // scenario.tensor_parallel
    roofline = Roofline(scenario.model, scenario.training.device, scenario.tensor_parallel)
    sliding = [make(f"sliding-{i:04d}", roofline, stored=False) for i in range(count)]
    serving: list[Inference] = [*engines, *sliding]
    if parts is not None:
        split = parts.prefill.devices // parts.degree
        ends = engines[:split], engines[split:]
        serving = [DisaggregatedEngine(*ends, parts.link_gb_s, scenario.model.kv_bytes)]
    return SimulatedWorkers(engines, sliding, scenario), serving


def make_scoring(scenario: Scenario, seed: int, make: MakeEngine) -> Scoring:
    """The model of scoring that a scenario asks for."""
    if scenario.measured is not None:
        return MeasuredScoring(scenario.measured, seed)
    reward = scenario.reward
    if isinstance(reward, Serverless):
        return ServerlessScoring(reward)
    if isinstance(reward, Dedicated):
        workers = [make(f"reward-{i}", reward.judge, stored=False) for i in range(reward.workers)]
        return DedicatedScoring(reward, workers)
    return RuleScoring()
