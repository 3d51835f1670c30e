"""The papers' absolute numbers, the parameters, and how figures are judged over seeds."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.control.schedule.schedules import sync_plus
from rollart_flow.simulation.hardware import (
    H800,
    MODELS,
    QWEN3_8B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    VLLM_ON_H100,
    EngineCosts,
    Roofline,
)
from rollart_flow.simulation.latencies import FixedLatency, LogNormal
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.absolute import formulas, observations, predictions
from tests.benchmarks.paper.figures import Figure, estimate
from tests.benchmarks.paper.fitting import (
    FAMILIES,
    Family,
    LeftOut,
    Oracle,
    error,
    fit_family,
    is_fitted,
    left_out,
    published,
)
from tests.benchmarks.paper.parameters import (
    ASSUMED,
    EXPERTS_SHARE,
    KNOBS,
    STORED,
    fitted,
    stored_fit,
)
from tests.benchmarks.paper.published import figures
from tests.benchmarks.paper.scenarios import Scenarios
from tests.benchmarks.paper.simplex import Point, descend
from tests.simulation.scenarios import ONE_POOL

LINKS = FAMILIES[0]
START = {name: knob.start for name, knob in KNOBS.items()}


VLLM = [
    json.loads(line)
    for line in Path(__file__).with_name("vllm_h100.jsonl").read_text().splitlines()
]
"""vLLM 0.20.2 on one H100: bfloat16, FlashAttention 3, CUDA graphs, prompts in chunks of 8,192
tokens (4,096 for 32B), no prefix caching. `decode_ms` is the median time of a token for `batch`
sequences of about `context` tokens each; `prefill_s` the time until each had its first token."""


@pytest.mark.parametrize("seen", VLLM, ids=lambda seen: "{model}, {batch}x{context}".format(**seen))
def test_costs_of_vllm_give_the_times_that_were_measured(seen: Mapping[str, Any]) -> None:
    engine = Roofline(MODELS[seen["model"]], H800, costs=VLLM_ON_H100)
    tokens = seen["batch"] * seen["context"]
    decode_s = engine.decode_s(seen["batch"], tokens + seen["batch"] * 12)
    assert decode_s == pytest.approx(seen["decode_ms"] / 1e3, rel=0.05)
    if tokens >= 8_192:  # shorter ones are of one pass, in which the processor does as much
        prefill_s = engine.prefill_s(tokens, seen["context"] / 2)
        assert prefill_s == pytest.approx(seen["prefill_s"], rel=0.15)


def test_each_further_sequence_of_a_pass_costs_time() -> None:
    free, dear = (Roofline(QWEN3_8B, H800, costs=EngineCosts(sequence_s=s)) for s in (0.0, 1e-3))
    assert dear.decode_s(10, 100) - free.decode_s(10, 100) == pytest.approx(0.01)


def test_every_observation_has_a_place_and_what_predicts_it_exists() -> None:
    given = Scenarios()
    known = set(predictions(given)) | set(formulas(given))
    seen = observations()
    assert all(row.paper and row.place and row.quantity and row.unit for row in seen)
    assert {row.predicted_by for row in seen if row.predicted_by} == known
    assert {158, 77, 365.7, 125, 37, 243, 45, 5.1, 9.6} <= {row.value for row in seen}


def test_nothing_is_fitted_of_the_assumed_parameters() -> None:
    assert Scenarios().software().costs == ASSUMED.costs == {}
    engine = Scenarios(fitted(START)).software().costs["H800"]
    assert engine.compute_share == VLLM_ON_H100.compute_share
    assert engine.pass_s == START["pass_s"] > KNOBS["pass_s"].low == VLLM_ON_H100.pass_s
    assert engine.sequence_s == START["sequence_s"]
    assert KNOBS["sequence_s"].low == VLLM_ON_H100.sequence_s
    domains = Scenarios(fitted(START)).disaggregated(QWEN3_32B).domains
    shares = {domain.cached_share for domain in domains if domain.turns != FixedLatency(1)}
    assert shares == {START["cached_share"]}


def test_several_devices_cost_more_for_each_pass_and_experts_attain_less() -> None:
    given = fitted(START)
    one, two, four = (given.cost("H800", QWEN3_32B, degree) for degree in (1, 2, 4))
    assert four.pass_s == pytest.approx(one.pass_s + START["several_s"])
    assert two.pass_s == pytest.approx(one.pass_s + START["several_s"] / 2)
    assert given.cost("H800", QWEN3_32B, 8).pass_s == pytest.approx(2 * four.pass_s - two.pass_s)
    experts = given.cost("H800", QWEN3_30B_A3B, 4)
    assert experts.compute_share == pytest.approx(EXPERTS_SHARE * four.compute_share)
    assert ASSUMED.cost("H800", QWEN3_30B_A3B, 4) == EngineCosts()


def test_tasks_of_many_turns_spread_as_software_does_in_a_fit() -> None:
    given = fitted(START)
    for domain in (given.swe, given.web, given.frozen_lake, given.alfworld):
        assert isinstance(domain.response, LogNormal)
        assert domain.response.sigma == START["swe_sigma"]
        assert domain.task_spread == START["swe_sigma"] / 2


def test_the_stored_fit_is_within_the_bounds_of_its_knobs() -> None:
    values = json.loads(STORED.read_text())["values"]
    assert values.keys() == KNOBS.keys()
    assert all(KNOBS[name].low <= value <= KNOBS[name].high for name, value in values.items())
    assert stored_fit() == fitted(values)


def test_a_fit_comes_nearer_to_what_it_is_fitted_to() -> None:
    family, oracle, seen = LINKS, Oracle(jobs=1), published()
    values = fit_family(family, START, oracle)
    before, after = (oracle.predict(v, family.keys) for v in (START, values))
    assert error(after, seen) < error(before, seen)
    assert all(after[key] == pytest.approx(seen[key].value, rel=0.15) for key in family.keys)
    assert {n: v for n, v in values.items() if n not in family.knobs} == {
        n: v for n, v in START.items() if n not in family.knobs
    }


@pytest.mark.parametrize("name", KNOBS)
def test_a_value_lies_at_a_share_of_the_range_of_its_knob(name: str) -> None:
    knob = KNOBS[name]
    assert knob.share(knob.at(0.3)) == pytest.approx(0.3)
    assert (knob.share(knob.low / 2), knob.share(knob.high * 2)) == (0.0, 1.0)


def test_a_simplex_search_finds_the_least_of_a_valley_and_stays_within_the_cube() -> None:
    def valley(point: Point) -> float:
        assert all(0 <= x <= 1 for x in point)
        x, y, z = point
        return (x - 0.6) ** 2 + 10 * (y - x * x) ** 2 + (z - 1.5) ** 2

    found = descend((0.1, 0.95, 0.5), valley, moves=120)
    assert found == pytest.approx((0.6, 0.36, 1.0), abs=0.02)
    assert descend(found, valley, moves=0) == found


def test_a_figure_is_left_out_as_a_whole_and_predicted_by_the_others() -> None:
    """Sizes 8B and 32B are one table: without it nothing determines the links."""
    found = left_out(Oracle(jobs=1), START, [LINKS])
    (place, out) = found.popitem()
    assert not found
    assert place == "ROLLART Table 3"
    assert out.numbers.keys() == set(LINKS.keys)
    assert not out.refitted
    assert LeftOut({"a": (2.0, 1.0), "b": (1.0, 2.0)}, True).error == pytest.approx(1.0)


def test_a_figure_with_numbers_of_two_families_is_left_out_of_both() -> None:
    small, large = (Family(size, LINKS.knobs, (f"rdma {size}",)) for size in ("8B", "32B"))
    apart = left_out(Oracle(jobs=1), START, [small, large])
    assert apart == left_out(Oracle(jobs=1), START, [LINKS])


def test_a_figure_is_fitted_where_all_its_numbers_are() -> None:
    names = [figure.name for figure in figures()]
    told = {name for name in names if is_fitted(name)}
    for family in FAMILIES:
        assert all(any(name.startswith(begin) for name in told) for begin in family.figures)
    assert "ROLL Flash Figure 10: 36x9 over 32x8" in set(names) - told


def test_a_slowdown_never_agrees_with_a_speedup() -> None:
    case = Case(ONE_POOL, sync_plus(), steps=2)
    speedup = Figure("name", case, case, (1.05, 1.2))
    assert speedup.agrees(1.01)
    assert not speedup.agrees(0.99)
    assert Figure("name", case, case, (0.9, 0.9)).agrees(0.95)
    assert not Figure("name", case, case, (0.9, 0.9)).agrees(1.0)


def test_a_range_without_an_end_agrees_with_all_that_is_more() -> None:
    at_least = Figure("name", Case(ONE_POOL, sync_plus(), steps=2), None, (40.0, math.inf))
    assert [at_least.agrees(value) for value in (30.0, 35.0, 400.0)] == [False, True, True]


def test_a_ratio_of_nearly_one_is_no_change_and_agrees_with_none() -> None:
    case = Case(ONE_POOL, sync_plus(), steps=2)
    at_most = Figure("name", case, case, (1.0, 1.2))
    assert at_most.agrees(0.98)
    assert not at_most.agrees(0.96)
    at_least = Figure("name", case, case, (1.1, 1.2))
    assert at_least.agrees(0.9999), "it is printed as 1"
    assert not at_least.agrees(0.998)


def test_several_seeds_have_a_mean_and_an_interval() -> None:
    assert estimate([2.0]).low == estimate([2.0]).high == 2.0
    of_three = estimate([1.0, 2.0, 3.0])
    assert of_three.mean == 2.0
    assert of_three.high - of_three.mean == pytest.approx(4.303 / 3**0.5)
