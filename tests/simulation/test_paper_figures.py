"""The papers' figures: their definitions, and the values of a few of them."""

import math
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest

from rollart_flow.control.schedule.declarations import Overdue
from rollart_flow.control.schedule.schedules import flash, sync_plus
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.figures import ITERATIONS, Figure, finish, rollout_s, step_s
from tests.benchmarks.paper.flash.rlvr import ALPHAS, SmallestAlpha
from tests.benchmarks.paper.flash.scenarios import asynchronous
from tests.benchmarks.paper.kept import run_figures
from tests.benchmarks.paper.published import figures
from tests.simulation.scenarios import ONE_POOL

ALL = figures()
CASE = Case(ONE_POOL, sync_plus(), steps=2)


def test_all_figures_of_the_papers_are_there() -> None:
    names = " ".join(figure.name for figure in ALL)
    for expected in (
        "Figure 10a", "Figure 10b", "Figure 10c", "Figure 11a", "Figure 11b", "Figure 12",
        "Figure 13", "Figure 14b", "Table 4", "Table 5", "ROLL Flash Figure 7",
        "ROLL Flash Figure 8", "ROLL Flash Figure 10", "Beyond", "Figure 3", "Figure 4a",
        "Figure 4b",
        "Figure 6", "Figure 14a", "Figure 15a", "Figure 15b", "Table 3", "ROLL Flash Figure 1b",
        "ROLL Flash Figure 3a", "ROLL Flash Figure 9", "ROLL Flash Figure 11", "ROLL Flash Table 1",
    ):  # fmt: skip
        assert expected in names


def test_names_are_unique_and_cases_go_to_other_processes() -> None:
    assert len({figure.name for figure in ALL}) == len(ALL)
    assert len({case.title for figure in ALL for case in figure.cases}) == len(
        {case for figure in ALL for case in figure.cases}
    )
    for figure in ALL:
        assert pickle.loads(pickle.dumps(figure.cases)) == figure.cases


def test_every_published_figure_has_an_explanation() -> None:
    assert all(figure.why for figure in ALL if figure.published is not None)


@pytest.mark.parametrize(
    ("published", "value", "nearest", "agrees"),
    [
        ((2.0, 2.0), 2.2, 2.0, True),
        ((2.0, 2.0), 2.4, 2.0, False),
        ((1.0, 2.0), 1.5, 1.5, True),
        ((1.0, 2.0), 0.8, 1.0, False),
        (None, 7.0, None, True),
    ],
)
def test_agreement_is_with_the_nearest_published_number(
    published: tuple[float, float] | None, value: float, nearest: float | None, agrees: bool
) -> None:
    figure = Figure("name", CASE, None, published)
    assert figure.nearest(value) == nearest
    assert figure.agrees(value) is agrees


@pytest.mark.parametrize(
    ("published", "span", "printed"),
    [
        (None, None, ""),
        ((2.0, 2.0), (2.0, 2.0), "2.00"),
        ((1.0, 2.5), (1.0, 2.5), "1.00-2.50"),
        ((40.0, math.inf), (40.0, None), "40.00 or more"),
    ],
)
def test_a_range_of_which_only_the_least_was_published_has_no_end(
    published: tuple[float, float] | None, span: tuple[float, float | None] | None, printed: str
) -> None:
    figure = Figure("name", CASE, None, published)
    assert (figure.span, figure.printed) == (span, printed)


def test_a_speedup_is_the_other_over_ours_and_cases_run_once() -> None:
    slower = Figure("slower", CASE, CASE, None)
    alone = Figure("alone", CASE, None, None)
    told: list[tuple[int, int]] = []
    runs = run_figures([slower, alone], jobs=1, on_case=lambda *at: told.append(at))
    assert told == [(0, 1), (1, 1)]
    assert slower.value(runs) == 1.0
    assert alone.value(runs) == step_s(runs[CASE]) > 0


def test_step_times_of_section_7_are_means_of_five() -> None:
    """Those of Figure 12 are said to be means of 32, and those of Figure 11b are of ten."""
    places = ("Figure 10", "Figure 11a", "Figure 13", "Figure 14", "Table 5")
    cases = {case for each in ALL if each.name.startswith(places) for case in each.cases}
    assert {case.steps - case.warmup for case in cases if case.warmup} == {ITERATIONS}
    assert all(case.warmup for case in cases), "with the default, fewer would be measured"
    assert ITERATIONS == 5


def test_a_synchronous_run_is_measured_for_as_many_steps_as_the_asynchronous_one() -> None:
    places = tuple(
        f"ROLL Flash {each}" for each in ("Figure 1b", "Figure 3", "Takeaway 3", "Figure 11")
    )
    pairs = [each for each in ALL if each.name.startswith(places) and each.against is not None]
    assert len(pairs) >= 18
    for figure in pairs:
        steps = {case.steps - case.warmup for case in figure.cases if case.warmup}
        assert len(steps) == 1, figure.name
        assert all(case.warmup for case in figure.cases), figure.name


def test_clusters_of_all_sizes_reserve_32_devices_for_training() -> None:
    scaling = [each.ours.scenario for each in ALL if each.name.startswith("Figure 10c")]
    sizes = [(pool.devices, each.training.devices) for each in scaling for pool in each.rollout]
    assert sizes == [(32, 32), (64, 32), (96, 32)]


def test_no_environment_of_table_5_fails_and_seven_times_those_of_figure_15_do_not_start() -> None:
    of_nodes = [each for each in ALL if each.name.startswith("Table 5")]
    domains = [domain for each in of_nodes for domain in each.ours.scenario.domains]
    assert {domain.failure for domain in domains} == {0.0}
    (production,) = {each.ours.scenario for each in ALL if each.name.startswith("Figure 15")}
    assert len(production.outages) == 7
    for before, after in pairwise(production.outages):
        assert before.begins_s + before.seconds < after.begins_s
    assert max(each.seconds for each in production.outages) < production.step_timeout_s


def test_the_buffer_of_figure_12_holds_alpha_times_as_many_as_there_are_environments() -> None:
    (figure,) = (each for each in ALL if each.name.startswith("Figure 12: rollout"))
    for case in figure.cases:
        scenario, bound = case.scenario, case.schedule.bound
        assert scenario.environments is not None
        assert scenario.environments > scenario.batch_size
        surplus = scenario.extra_groups * scenario.group_size
        held = bound.capacity(scenario.batch_size) + surplus
        assert held == bound.capacity(scenario.environments)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_ratios_are_compared_over_whole_cycles_in_which_nothing_is_aborted(alpha: int) -> None:
    case = asynchronous(ONE_POOL, alpha)
    assert case.schedule.overdue is Overdue.AWAIT
    assert case.warmup is not None
    assert (case.steps - case.warmup) % (1 + alpha) == 0


def test_the_ratio_that_is_required_is_the_smallest_of_about_the_best() -> None:
    one, two, four = (Case(ONE_POOL, flash(alpha), steps=2) for alpha in (1, 2, 4))
    tried = ((1, one), (2, two), (4, four))
    figure = SmallestAlpha("required", two, None, (2.0, 2.0), rollout_s, "", tried)
    assert figure.cases == (one, two, four)
    row = finish(CASE)
    runs = {case: replace(row, rollout_s=s) for case, s in ((one, 9.0), (two, 5.1), (four, 5.0))}
    assert figure.value(runs) == 2.0
    assert {case.seed for case in figure.seeded(3).cases} == {3}
