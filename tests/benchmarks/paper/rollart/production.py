"""ROLLART section 8: Figure 15, the production job, on a twentieth of its devices.

Neither the model nor the batch nor the ratio after the change is published: a mixture of experts of
Qwen3's largest size stands for a model of hundreds of billions, on 24 devices for training and 120
for generation, the paper's 1:5, and the batch is that of section 7.1. Twenty times as many attempts
in 60 iterations are the "hundreds of thousands" of resets of the text. In seven of them
environments fail to start for long, all at once: images cannot be pulled.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.simulation.hardware import H800, SimulatedModel
from rollart_flow.simulation.latencies import FixedLatency, LogNormal
from rollart_flow.simulation.report.comparison import Case
from rollart_flow.simulation.scenario import Outage, Pool, Scenario
from tests.benchmarks.paper import measures
from tests.benchmarks.paper.figures import Figure
from tests.benchmarks.paper.scenarios import Scenarios

QWEN3_235B_A22B = SimulatedModel(
    "Qwen3-235B-A22B", 235.1e9, 94, 4096, 8192, 512, active=22.2e9
)  # fmt: skip

ITERATIONS = 60
"""Iterations of the trace, over which the largest share of waiting is taken."""
MATHEMATICS = 15
"""Tasks of mathematics for one of software; assumed."""
TRAINING_SHARE = 0.7
"""What training attains of the arithmetic of other mixtures of experts; assumed."""
OUTAGES, OUTAGE_S, PERIOD_S = 7, 1_500.0, 6_600.0
"""How often environments do not start (section 8), for how long each time and how far apart, which
is assumed: about a seventh of the 60 iterations [s]."""


def figures(given: Scenarios) -> Iterator[Figure]:
    """The numbers of section 8 that the text prints and a simulation has."""
    case = Case(production(given), rollart(1), steps=ITERATIONS)
    for name, published, measure in (
        ("Figure 15a: longest response over the mean", (5.0, 9.0), measures.longest_response),
        ("Figure 15a: most turns over the mean", (40.0, math.inf), measures.most_turns),
        ("Figure 15b: largest share of waiting in a step", (0.62, 0.62), measures.longest_wait),
        ("Figure 15b: share of waiting in all steps", (0.22, 0.22), measures.mean_wait),
    ):
        yield Figure(name, case, None, published, measure, _WHY_15)


def production(given: Scenarios) -> Scenario:
    """Mathematics and software engineering; two batches of environments.

    Prompts have up to 12k tokens, responses up to 46k, and 5 to 9 times their mean; tasks take 1 to
    48 turns on average, and at most more than 40 times the mean of all (Figure 15a). That mean has
    to be small then: one task of sixteen is software.
    """
    mathematics = replace(
        given.parameters.math,
        name="production-math",
        turns=FixedLatency(1),
        response=LogNormal(3_700, 0.9, most=46_000),
        judged=False,
        share=MATHEMATICS,
    )
    software = replace(
        given.parameters.swe,
        name="production-swe",
        turns=LogNormal(36.0, 0.75, most=300),
        prompt=LogNormal(4_000, 0.5, most=12_000),
        observation=LogNormal(100, 0.8, most=2_000),
        response=LogNormal(80, 0.8, most=4_000),
    )
    scenario = Scenario(
        "production, a twentieth",
        QWEN3_235B_A22B,
        (mathematics, software),
        (Pool(H800, 120),),
        Pool(H800, 24),
        batch_size=512,
        environments=2 * 512,
        group_size=8,
        tensor_parallel=8,
        context_tokens=58_000,
        transfer=given.parameters.within,
        outages=tuple(Outage((i + 0.5) * PERIOD_S, OUTAGE_S) for i in range(OUTAGES)),
        step_timeout_s=2 * OUTAGE_S,
    )
    scenario = given.priced(scenario)
    cost = scenario.cost
    training = replace(cost, compute_share=TRAINING_SHARE * cost.compute_share)
    # Weights alone fill 0.73 of the memory: the share of ROLL's example leaves too little room.
    costs = {name: replace(cost, memory_share=0.9) for name, cost in scenario.costs.items()}
    return replace(scenario, costs=costs, training_cost=training)


_WHY_15 = (
    "the production job's model, batch and lengths are not published but for their largest values"
)
