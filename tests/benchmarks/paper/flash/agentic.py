"""ROLL Flash section 5.2: Figures 9, 10 as the whole heat map, and 11."""

from collections.abc import Iterator

from rollart_flow.control.schedule.schedules import sync, sync_plus
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import Figure, in_turns, rollout_s
from tests.benchmarks.paper.flash.scenarios import CYCLES, agents, asynchronous, waiting
from tests.benchmarks.paper.scenarios import Scenarios

GROUPS, GROUP_SIZES = (32, 33, 34, 35, 36), (8, 9, 10, 11, 12)
"""Axes of the heat map; the text names 32 and 36 groups, and sizes 8, 9, 11 and 12."""

HEAT = {(36, 9): 3.10, (36, 11): 5.24, (36, 12): 5.45}
"""Speedups over 32 groups of 8 that the text prints."""

HOURS = {"SWE": (10.22, 8.32, 7.66, 6.09, 5.65), "ALFWorld": (13.37, 8.44, 7.85, 5.87, 4.91)}
"""Training time [h]: in lockstep, each by itself, the same with redundancy, asynchronous, both."""


def figures(given: Scenarios) -> Iterator[Figure]:
    """The figures of section 5.2."""
    yield from _waiting(given)
    yield from _heat_map(given)
    yield from _agents(given)


def _waiting(given: Scenarios) -> Iterator[Figure]:
    for sigma in (1.0, 5.0, 10.0):
        scenario = waiting(given, sigma)
        ours, slow = (Case(scenario, schedule, steps=2) for schedule in (sync_plus(), sync()))
        name = f"ROLL Flash Figure 9: environments by themselves over lockstep, sigma {sigma:g} s"
        yield Figure(name, ours, slow, None, rollout_s)


def _heat_map(given: Scenarios) -> Iterator[Figure]:
    base = Case(given.redundant_environments(GROUPS[0], GROUP_SIZES[0]), sync_plus(), steps=3)
    for groups in GROUPS:
        for size in GROUP_SIZES:
            if (groups, size) == (GROUPS[0], GROUP_SIZES[0]):
                continue
            ours = Case(given.redundant_environments(groups, size), sync_plus(), steps=3)
            printed = HEAT.get((groups, size))
            name = f"ROLL Flash Figure 10: {groups}x{size} over 32x8"
            span = None if printed is None else (printed, printed)
            yield Figure(name, ours, base, span, rollout_s, "" if printed is None else _WHY_10)


def _agents(given: Scenarios) -> Iterator[Figure]:
    for task, (lockstep, single, redundant, async_, both) in HOURS.items():
        one, surplus = (agents(given, task, apart=False, redundant=on) for on in (False, True))
        apart, more = (agents(given, task, apart=True, redundant=on) for on in (False, True))
        slow, plus = (in_turns(one, schedule, CYCLES) for schedule in (sync(), sync_plus()))
        extra = in_turns(surplus, sync_plus(), CYCLES)
        free, most = (asynchronous(each, 1) for each in (apart, more))
        for what, ours, against, published in (
            ("environments by themselves over lockstep", plus, slow, lockstep / single),
            ("redundancy, synchronous", extra, plus, single / redundant),
            ("asynchronous over synchronous", free, plus, single / async_),
            ("redundancy, asynchronous", most, free, async_ / both),
            ("all over lockstep", most, slow, lockstep / both),
        ):
            name = f"ROLL Flash Figure 11 {task}: {what}"
            yield Figure(name, ours, against, (published, published), why=_WHY_11)


_WHY_10 = (
    "the number of turns is not published: a Gaussian itself has no tail that redundancy could "
    "cut, and what it can cut is the attempts of many turns"
)
_WHY_11 = "lengths, latencies and failures of the environments are not published"
