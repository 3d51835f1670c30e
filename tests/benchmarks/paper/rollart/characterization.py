"""ROLLART section 3: Figures 3, 4 and 6, and Table 3.

The text names no batch size of Figure 4 and no trajectory of Figure 3's failures; both are assumed
here and named so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rollart_flow.control.schedule.schedules import rollart, sync, sync_plus
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B, SimulatedModel
from rollart_flow.simulation.latencies import LatencyMixture
from rollart_flow.simulation.report.comparison import Case
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.transfers import WeightTransfer
from rollart_flow.simulation.workloads import SimulatedDomain
from tests.benchmarks.paper import measures
from tests.benchmarks.paper.figures import (
    Figure,
    Finished,
    exposed_pull_s,
    reward_utilization,
    rollout_s,
    step_s,
)
from tests.benchmarks.paper.scenarios import MODELS, Scenarios

BATCHES = (16, 24, 32)
"""Batch sizes of Figure 4; the plot alone shows the paper's. Two H800 hold the KV caches of 19
trajectories of 32,768 tokens: with many more, most prefixes would be computed again."""

TABLE_3 = ((6.911, 5.466), (14.437, 5.817), (29.649, 9.442))
"""Transfer over TCP and RDMA for the three models [s]."""


def figures(given: Scenarios) -> Iterator[Figure]:
    """The figures and tables of section 3, in the order of the paper."""
    yield from _breakdown(given)
    yield from _classes(given)
    yield from _judge(given)
    yield from _transmissions(given)


def software(given: Scenarios, *, failing: bool, silent: bool = False) -> Scenario:
    """Figure 3: SWE-bench with Qwen3-8B on 32 H800, 128 trajectories; if environments fail, two or
    three launches take hundreds of seconds; silent: of no replies.

    Steps with failures are simulated by single trajectories: their reset takes 0.78 of the rollout,
    which leaves it a fifth of the time of a rollout in lockstep.
    """
    launch, slow = given.parameters.launch_s, given.parameters.slow_launch_s
    scenario = given.software(silent=silent)
    (domain,) = scenario.domains
    domain = replace(
        domain, reset_s=LatencyMixture(((0.98, launch), (0.02, slow))) if failing else launch
    )
    name = scenario.name + (", slow resets" if failing else ", no slow resets")
    return replace(scenario, name=name, domains=(domain,))


@dataclass(frozen=True)
class GenerationShare(Figure):
    """What a rollout takes longer than one of attempts that generate nothing, as a share of a step.

    The paper counts initialization and other overheads beside generation; `against` is the case of
    those attempts.
    """

    def value(self, runs: Mapping[Case, Finished]) -> float:
        assert self.against is not None
        longer_s = self.measure(runs[self.ours]) - self.measure(runs[self.against])
        return longer_s / step_s(runs[self.ours])


def _breakdown(given: Scenarios) -> Iterator[Figure]:
    well = Case(software(given, failing=False), sync(), steps=4)
    ill = Case(software(given, failing=True), sync_plus(), steps=4)
    ideal = Case(software(given, failing=False), sync_plus(), steps=4)
    for name, case, published, measure in (
        ("step [s]", well, 365.7, step_s),
        ("training's share of a step", well, 0.23, measures.training_share),
        ("reset's share of a step", well, 0.15, measures.reset_share),
        ("step with failures [s]", ill, 513.3, step_s),
        ("reset's share of rollout with failures", ill, 0.78, measures.reset_of_rollout),
    ):
        yield Figure(f"Figure 3: {name}", case, None, (published, published), measure, _WHY_3)
    silent = Case(software(given, failing=False, silent=True), sync(), steps=4)
    name = "Figure 3: generation's share of a step"
    yield GenerationShare(name, well, silent, (0.54, 0.54), rollout_s, _WHY_3)
    name = "Figure 3: rollout in lockstep over each by itself"
    yield Figure(name, ideal, well, (1.0, 1.213), rollout_s, _WHY_3)


def _classes(given: Scenarios) -> Iterator[Figure]:
    lake, mathematics = given.parameters.frozen_lake, given.parameters.math
    for batch in BATCHES:
        h800, h20 = (_of_class(given, lake, pool, batch) for pool in (Pool(H800, 2), Pool(H20, 6)))
        name = f"Figure 4a: FrozenLake, two H800 over six H20, batch {batch}"
        yield Figure(name, h800, h20, (1.0, 1 / 0.53), rollout_s, _WHY_4)
    for batch in BATCHES:
        h800, h20 = (
            _of_class(given, mathematics, pool, batch) for pool in (Pool(H800, 2), Pool(H20, 6))
        )
        name = f"Figure 4b: GEM-math, six H20 over two H800, batch {batch}"
        yield Figure(name, h20, h800, (1 / 0.79, 1 / 0.49), rollout_s, _WHY_4)


def _of_class(given: Scenarios, domain: SimulatedDomain, pool: Pool, batch: int) -> Case:
    scenario = Scenario(
        f"{domain.name} on {pool.devices} {pool.device.name}, batch {batch}",
        QWEN3_8B,
        (replace(domain, judged=False),),
        (pool,),
        Pool(H800, 8),
        batch_size=batch,
        group_size=8,
        transfer=given.parameters.within,
    )
    return Case(given.priced(scenario), sync_plus(), steps=10)


def _judge(given: Scenarios) -> Iterator[Figure]:
    name = "Figure 6: utilization of the judge, four H800"
    yield Figure(name, judged(given), None, (0.074, 0.074), reward_utilization, _WHY_6)


def judged(given: Scenarios) -> Case:
    """Figure 6: a judge on four of the 32 devices, which reads each trajectory of SWE-bench."""
    scenario = software(given, failing=False)
    (domain,) = scenario.domains
    scenario = replace(
        scenario,
        name="swe on 28 H800, judge on 4",
        domains=(replace(domain, judged=True),),
        training=Pool(H800, 28),
        reward=given.dedicated(),
    )
    return Case(scenario, sync(), steps=4)


def _transmissions(given: Scenarios) -> Iterator[Figure]:
    tcp = replace(given.parameters.across, streamed=False)
    for model, (over_tcp, over_rdma) in zip(MODELS, TABLE_3, strict=True):
        size = model.name.removeprefix("Qwen3-")
        for link, transfer, published in (
            ("TCP", tcp, over_tcp),
            ("RDMA", given.parameters.within, over_rdma),
        ):
            case = transferred(given, model, transfer, f"over {link}")
            name = f"Table 3: transfer over {link} [s], {size}"
            yield Figure(name, case, None, (published, published), exposed_pull_s, _WHY_T3)


def transferred(
    given: Scenarios, model: SimulatedModel, transfer: WeightTransfer, how: str
) -> Case:
    """A short run whose weights go another way: eight short trajectories a step."""
    scenario = replace(
        given.disaggregated(model, 40),
        name=f"weights of {model.name} {how}",
        domains=(given.parameters.frozen_lake,),
        batch_size=8,
        environments=8,
        group_size=4,
        transfer=transfer,
    )
    return Case(scenario, rollart(1), steps=3)


_WHY_3 = (
    "the paper publishes no lengths of its trajectories, and no distribution of resets that fail: "
    "the shares follow from those assumed here"
)
_WHY_4 = "the batch sizes stand in the plot alone, and the lengths of the tasks are not published"
_WHY_6 = "how much the judge reads and writes for a trajectory is not published"
_WHY_T3 = (
    "the time is proportional to the size here, with the rates of Table 4 for TCP and of 32B for "
    "RDMA; the paper's has a part that is the same for small models, and its TCP is another run "
    "than Table 4's"
)
