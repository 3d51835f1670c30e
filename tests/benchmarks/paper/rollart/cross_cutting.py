"""ROLLART section 7.4: Figure 14, and Tables 4 and 5."""

from collections.abc import Iterator
from dataclasses import replace

from rollart_flow.control.schedule.schedules import rollart, sync_plus
from rollart_flow.simulation.hardware import QWEN3_32B
from tests.benchmarks.paper import measures
from tests.benchmarks.paper.figures import Figure, exposed_pull_s, in_turns, rollout_s, settled
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
    """Figures 14a and 14b, Table 4, and the speedups and times of Table 5."""
    yield from _overlap(given)
    yield from _redundancy(given)
    yield from _exposed(given)
    yield from _transfers(given)
    yield from _prefill_decode(given)
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
        ours, against = settled(scenario, ROLLART), settled(blocking, rollart(1))
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
            case = in_turns(scenario, sync_plus())
            yield Figure(name, case, None, (published, published), rollout_s, _WHY_T5)


def _redundancy(given: Scenarios) -> Iterator[Figure]:
    base = in_turns(given.redundant(16, 8, 16, 128), sync_plus())
    for groups, size in ((16, 12), (24, 8), (24, 12)):
        ours = in_turns(given.redundant(groups, size, 16, 128), sync_plus())
        name = f"Figure 14b: {groups} groups of {size} over 16 of 8"
        yield Figure(name, ours, base, (1.0, 1.62), rollout_s, _WHY_14B)


def _exposed(given: Scenarios) -> Iterator[Figure]:
    for model, published in zip(MODELS, (1.4, 5.1, 9.6), strict=True):
        case = settled(given.affine(model), ROLLART)
        name = f"Table 4: exposed weight pull [s], {model.name.removeprefix('Qwen3-')}"
        yield Figure(name, case, None, (published, published), exposed_pull_s, _WHY_EXPOSED)


def _prefill_decode(given: Scenarios) -> Iterator[Figure]:
    for model, prefill, published in (
        (QWEN3_32B, 1, 1.03),
        (QWEN3_32B, 2, 1.05),
        (MIXTURE_OF_EXPERTS, 1, 1.11),
        (MIXTURE_OF_EXPERTS, 2, 1.21),
    ):
        ours = in_turns(given.nodes(model, prefill, disaggregate=True), sync_plus())
        together = in_turns(given.nodes(model, prefill, disaggregate=False), sync_plus())
        size = model.name.removeprefix("Qwen3-")
        name = f"Table 5: {prefill}P{4 - prefill}D over colocation, {size}"
        yield Figure(name, ours, together, (published, published), rollout_s, _WHY_PD)


_WHY_14A = (
    "the paper measures against NCCL over Ethernet, whose time it does not print; here the other "
    "transfer has the push and the pull of Table 4, and neither beside the rollout"
)
_WHY_T4 = "push and pull are proportional to the size of the weights here"
_WHY_T5 = "the lengths of the SWE trajectories are not published"
_WHY_14B = (
    "surplus is started with the rest here, and what is long is what is cancelled: the price is "
    "the share of slow tasks, which the paper does not show"
)
_WHY_EXPOSED = (
    "the last bucket's pull and the copy into the devices are exposed here; what else the paper's "
    "workers wait for is not said"
)
_WHY_PD = (
    "with prefixes cached the prompts of later turns are short here, so that there is little "
    "prefill to take off the decode workers, which are fewer and share passes among more"
)
