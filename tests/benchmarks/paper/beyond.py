"""What `rollart_plus` wins where the papers' schedule loses: figures that nobody published."""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedules import rollart_plus
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import Figure, case_of, over_bound, slow_represented, wasted
from tests.benchmarks.paper.scenarios import MODELS, ROLLART, Scenarios

BEYOND_ALPHAS = (6, 4, 2)
"""Alphas of `rollart_plus` for the models: the smallest that keep training, or the link, busy."""


def figures(given: Scenarios) -> Iterator[Figure]:
    """The loss of `rollart` against its bound, and the part of it that `rollart_plus` wins back.

    Every worker may take any task here, and alpha is large enough for the longest trajectory to end
    while training continues: nothing is aborted, and no batch has fewer slow tasks.
    """
    for model, alpha in zip(MODELS, BEYOND_ALPHAS, strict=True):
        size = model.name.removeprefix("Qwen3-")
        # The attempts that were admitted together at the start have to leave first.
        first = 2 * (alpha + 1) + 2
        plus = Case(given.unbound(model), rollart_plus(alpha), steps=first + 6, warmup=first)
        for schedule, case in (
            ("rollart", case_of(given.affine(model), ROLLART, 6)),
            ("rollart_plus", plus),
        ):
            name = f"Beyond: step of {schedule} over its bound, {size}"
            yield Figure(name, case, None, None, over_bound)
        name = f"Beyond: tokens thrown away by rollart_plus, {size}"
        yield Figure(name, plus, None, None, wasted)
        name = f"Beyond: slow quarter trained on by rollart_plus, {size}"
        yield Figure(name, plus, None, None, slow_represented)
