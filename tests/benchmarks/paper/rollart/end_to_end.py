"""ROLLART sections 7.2 and 7.3: the baselines of Figure 10 one over the other, and more sizes.

Time to score (Figure 10a) is the number of steps to a score times the step time. The text prints
the ratios of step times alone, and curves of scores are in the plot alone, so that schedules are
compared at an equal number of steps: by the text itself, `areal` and `rollart(2)` need more.
"""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedules import areal, one_off, rollart, sync_plus
from rollart_flow.simulation.hardware import QWEN3_14B, QWEN3_32B
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import Figure, token_s
from tests.benchmarks.paper.scenarios import MODELS, ROLLART, Scenarios


def figures(given: Scenarios) -> Iterator[Figure]:
    """Figures 10a, 10b, 11a and 13, where another figure does not have them already."""
    yield from _time_to_score(given)
    yield from _baselines(given)
    yield from _affinity(given)
    yield from _bounds(given)


def _time_to_score(given: Scenarios) -> Iterator[Figure]:
    plus = Case(given.monolithic(QWEN3_32B), sync_plus(), steps=4)
    off = Case(given.disaggregated(QWEN3_32B), one_off(), steps=4)
    name = "Figure 10a: time to score of one_off over sync_plus, equal steps, 32B"
    yield Figure(name, off, plus, (1.52, 1.52), why=_WHY_10)


def _baselines(given: Scenarios) -> Iterator[Figure]:
    for model in MODELS:
        size = model.name.removeprefix("Qwen3-")
        apart = given.disaggregated(model)
        plus = Case(given.monolithic(model), sync_plus(), steps=4)
        off, open_ = (Case(apart, schedule, steps=4) for schedule in (one_off(), areal(1)))
        ours = Case(given.affine(model), ROLLART, steps=6)
        for names, fast, slow, published in (
            ("one_off over sync_plus", off, plus, (1.31, 1.47)),
            ("areal over one_off", open_, off, (1.03, 1.06)),
            ("rollart over areal", ours, open_, (1.22, 1.36)),
        ):
            name = f"Figure 10b: throughput of {names}, {size}"
            yield Figure(name, fast, slow, published, token_s, _WHY_10)


def _affinity(given: Scenarios) -> Iterator[Figure]:
    mixed = Case(given.equal_cost(QWEN3_14B, 64, 24), ROLLART, steps=6)
    for h800, h20, published in ((0, 208, (1.30, 1.68)), (72, 0, (1.12, 1.37))):
        other = Case(given.equal_cost(QWEN3_14B, h800, h20), ROLLART, steps=6)
        kind = "H20" if h20 else "H800"
        name = f"Figure 11a: affinity over {kind} only, 14B"
        yield Figure(name, mixed, other, published, why=_WHY_10)


def _bounds(given: Scenarios) -> Iterator[Figure]:
    for model in MODELS[1:]:
        base = Case(given.affine(model), ROLLART, steps=6)
        for alpha in range(2, 7):
            schedule = rollart(alpha).switched(overlapped=True)
            ours = Case(given.affine(model), schedule, steps=6 + alpha)
            name = f"Figure 13: alpha {alpha} over 1, {model.name.removeprefix('Qwen3-')}"
            yield Figure(name, ours, base, (1.0, 1.22), why=_WHY_13)


_WHY_10 = (
    "the papers publish no lengths and latencies of their tasks; with those assumed here the "
    "longest trajectory or training binds the step more than the rollout's devices"
)
_WHY_13 = "how far a larger bound helps depends on the longest trajectories, which are assumed"
