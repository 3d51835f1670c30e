"""What `rollart_plus` wins where the papers' schedule loses: figures that nobody published."""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedules import rollart_plus
from tests.benchmarks.paper.figures import Figure, over_bound, settled, slow_represented, wasted
from tests.benchmarks.paper.scenarios import MODELS, ROLLART, Scenarios


def figures(given: Scenarios) -> Iterator[Figure]:
    """Step time over the bound that no schedule of a staleness of 1 beats, on the mix of Figure 10.

    The goals of `rollart_plus(alpha=1)` are 1.10 of the bound, 5% of tokens thrown away, and no
    batch with fewer slow tasks.
    """
    for model in MODELS:
        size = model.name.removeprefix("Qwen3-")
        scenario = given.affine(model)
        for schedule, case in (
            ("rollart", settled(scenario, ROLLART)),
            ("rollart_plus", settled(scenario, rollart_plus(1))),
        ):
            name = f"Beyond: step of {schedule} over its bound, {size}"
            yield Figure(name, case, None, None, over_bound)
            name = f"Beyond: tokens thrown away by {schedule}, {size}"
            yield Figure(name, case, None, None, wasted)
            name = f"Beyond: slow quarter trained on by {schedule}, {size}"
            yield Figure(name, case, None, None, slow_represented)
