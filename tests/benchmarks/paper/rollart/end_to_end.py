"""ROLLART section 7.2: Figure 10.

Time to score (Figure 10a) is the number of steps to a score times the step time. The text prints
the ratios of step times alone, and curves of scores are in the plot alone, so that schedules are
compared at an equal number of steps: by the text itself, `areal` and `rollart(2)` need more.
"""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedules import areal, one_off, sync, sync_plus
from rollart_flow.simulation.hardware import QWEN3_14B, QWEN3_32B
from tests.benchmarks.paper.figures import (
    OTHER_LENGTHS,
    Figure,
    filled,
    in_turns,
    settled,
    token_s,
)
from tests.benchmarks.paper.scenarios import MODELS, ROLLART, Scenarios


def figures(given: Scenarios) -> Iterator[Figure]:
    """Figures 10a, 10b and 10c."""
    yield from _end_to_end(given)
    yield from _time_to_score(given)
    yield from _baselines(given)
    yield from _scaling(given)


def _time_to_score(given: Scenarios) -> Iterator[Figure]:
    plus = in_turns(given.monolithic(QWEN3_32B), sync_plus())
    off = filled(given.disaggregated(QWEN3_32B), one_off())
    name = "Figure 10a: time to score of one_off over sync_plus, equal steps, 32B"
    yield Figure(name, off, plus, (1.52, 1.52), why=_WHY_10)


def _baselines(given: Scenarios) -> Iterator[Figure]:
    for model in MODELS:
        size = model.name.removeprefix("Qwen3-")
        apart = given.disaggregated(model)
        plus = in_turns(given.monolithic(model), sync_plus())
        off, open_ = filled(apart, one_off()), settled(apart, areal(1))
        ours = settled(given.affine(model), ROLLART)
        for names, fast, slow, published in (
            ("one_off over sync_plus", off, plus, (1.31, 1.47)),
            ("areal over one_off", open_, off, (1.03, 1.06)),
            ("rollart over areal", ours, open_, (1.22, 1.36)),
        ):
            name = f"Figure 10b: throughput of {names}, {size}"
            yield Figure(name, fast, slow, published, token_s, _WHY_10)


def _end_to_end(given: Scenarios) -> Iterator[Figure]:
    large = settled(given.affine(QWEN3_32B), ROLLART)
    separated = given.disaggregated(QWEN3_32B)
    for slow, published in (
        (in_turns(given.monolithic(QWEN3_32B), sync_plus()), 2.05),
        (filled(separated, one_off()), 1.35),
        (settled(separated, areal(1)), 1.31),
    ):
        name = f"Figure 10a: rollart over {slow.schedule.name}, 32B"
        yield Figure(name, large, slow, (published, published), why=_WHY_10A)
    for model in MODELS:
        ours = settled(given.affine(model), ROLLART)
        slow = in_turns(given.monolithic_judged_here(model), sync())
        plus = in_turns(given.monolithic(model), sync_plus())
        size = model.name.removeprefix("Qwen3-")
        yield Figure(
            f"Figure 10b: throughput of rollart over sync, {size}",
            ours, slow, (2.65, 4.58), token_s, _WHY_SYNC,
        )  # fmt: skip
        yield Figure(
            f"Figure 10b: throughput of sync_plus over sync, {size}",
            plus, slow, (1.40, 2.40), token_s, _WHY_SYNC,
        )  # fmt: skip


def _scaling(given: Scenarios) -> Iterator[Figure]:
    base = in_turns(given.monolithic(QWEN3_14B, 64), sync_plus())
    for devices in (64, 96, 128):
        ours = settled(given.disaggregated(QWEN3_14B, devices), ROLLART)
        name = f"Figure 10c: rollart on {devices} H800 over sync_plus on 64, 14B"
        yield Figure(name, ours, base, (1.33, 2.08), token_s, _WHY_10C)


_WHY_10 = (
    OTHER_LENGTHS + "the longest trajectory or training binds the step more than the rollout's "
    "devices"
)
_WHY_10A = (
    OTHER_LENGTHS + "training on 32 H800 binds whatever overlaps it, so that AReaL's tail and "
    "hardware affinity do not show"
)
_WHY_SYNC = (
    OTHER_LENGTHS + "steps of environments have heavy tails, and each turn of a batch in lockstep "
    "waits for the slowest of 512"
)
_WHY_10C = (
    OTHER_LENGTHS + "the longest trajectory or training binds the step and not the rollout pool, "
    "whose price and size matter less"
)
