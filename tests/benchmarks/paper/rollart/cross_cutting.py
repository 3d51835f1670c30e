"""ROLLART section 7.4: Figure 14a, the other rows of Table 4, and the times of Table 5."""

from collections.abc import Iterator
from dataclasses import replace

from rollart_flow.control.schedule.schedules import rollart, sync_plus
from rollart_flow.simulation.hardware import QWEN3_32B
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper import measures
from tests.benchmarks.paper.figures import Figure, exposed_pull_s, rollout_s
from tests.benchmarks.paper.rollart.characterization import transferred
from tests.benchmarks.paper.scenarios import MIXTURE_OF_EXPERTS, MODELS, ROLLART, Scenarios

TABLE_4 = ((38.6, 32.4, 6.2), (84.1, 67.8, 16.3), (157.0, 127.3, 29.7))
"""Both without overlap, the push, and the accumulated pull for the three models [s]."""

TABLE_5 = (
    (QWEN3_32B, 1, 722.7, 741.2),
    (QWEN3_32B, 2, 701.6, 734.9),
    (MIXTURE_OF_EXPERTS, 1, 294.8, 327.4),
    (MIXTURE_OF_EXPERTS, 2, 251.1, 305.2),
)
"""Model, nodes for prefill, and rollout times disaggregated and colocated [s]."""


def figures(given: Scenarios) -> Iterator[Figure]:
    """What section 7.4 prints beside the speedups of Figure 14b and Table 5."""
    yield from _overlap(given)
    yield from _transfers(given)
    yield from _times(given)


def _overlap(given: Scenarios) -> Iterator[Figure]:
    for model in MODELS:
        scenario = given.affine(model)
        blocking = replace(
            scenario,
            name=f"{scenario.name}, weights at once",
            transfer=replace(scenario.transfer, streamed=False),
        )
        size = model.name.removeprefix("Qwen3-")
        name = f"Figure 14a: transfer beside the rollout over at once, {size}"
        ours, against = Case(scenario, ROLLART, steps=6), Case(blocking, rollart(1), steps=6)
        yield Figure(name, ours, against, (1.10, 1.16), why=_WHY_14A)


def _transfers(given: Scenarios) -> Iterator[Figure]:
    at_once = replace(given.parameters.across, streamed=False)
    for model, row in zip(MODELS, TABLE_4, strict=True):
        case = transferred(given, model, at_once, "over TCP")
        size = model.name.removeprefix("Qwen3-")
        for name, published, measure in zip(
            ("push and pull, no overlap", "weight push", "accumulated weight pull"),
            row,
            (measures.transfer_s, measures.push_s, exposed_pull_s),
            strict=True,
        ):
            yield Figure(
                f"Table 4: {name} [s], {size}", case, None, (published, published), measure, _WHY_T4
            )


def _times(given: Scenarios) -> Iterator[Figure]:
    for model, prefill, apart, together in TABLE_5:
        for disaggregate, published in ((True, apart), (False, together)):
            scenario = given.nodes(model, prefill, disaggregate=disaggregate)
            kind = "disaggregated" if disaggregate else "colocated"
            size = model.name.removeprefix("Qwen3-")
            name = f"Table 5: rollout on {prefill}P{4 - prefill}D {kind} [s], {size}"
            case = Case(scenario, sync_plus(), steps=2)
            yield Figure(name, case, None, (published, published), rollout_s, _WHY_T5)


_WHY_14A = (
    "the paper measures against NCCL over Ethernet, whose time it does not print; here the other "
    "transfer has the push and the pull of Table 4, and neither beside the rollout"
)
_WHY_T4 = "push and pull are proportional to the size of the weights here"
_WHY_T5 = "the lengths of the SWE trajectories are not published"
