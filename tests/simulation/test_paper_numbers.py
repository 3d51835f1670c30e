"""The papers' absolute numbers, the parameters, and how figures are judged over seeds."""

import pytest

from rollart_flow.control.schedule.schedules import sync_plus
from rollart_flow.simulation.hardware import (
    H800,
    QWEN3_8B,
    QWEN3_14B,
    QWEN3_32B,
    VLLM_ON_H100,
    EngineCosts,
    Roofline,
    SimulatedModel,
)
from rollart_flow.simulation.report.comparison import Case
from tests.benchmarks.paper.absolute import formulas, observations, predictions
from tests.benchmarks.paper.figures import Figure, estimate
from tests.benchmarks.paper.fitting import FAMILIES, Oracle, fit_family, published
from tests.benchmarks.paper.parameters import ASSUMED, KNOBS, fitted, stored_fit
from tests.benchmarks.paper.scenarios import Scenarios
from tests.simulation.scenarios import ONE_POOL

START = {name: knob.start for name, knob in KNOBS.items()}


@pytest.mark.parametrize(
    ("model", "batch", "context", "measured_ms"),
    [
        (QWEN3_8B, 1, 512, 7.94),
        (QWEN3_8B, 64, 512, 10.36),
        (QWEN3_8B, 256, 512, 17.96),
        (QWEN3_8B, 32, 4_096, 14.62),
        (QWEN3_8B, 8, 16_384, 14.36),
        (QWEN3_14B, 1, 512, 12.84),
        (QWEN3_14B, 128, 512, 18.45),
        (QWEN3_14B, 16, 4_096, 16.47),
        (QWEN3_32B, 1, 512, 27.08),
        (QWEN3_32B, 32, 512, 29.42),
    ],
)
def test_costs_of_vllm_give_the_passes_that_were_measured_on_an_h100(
    model: SimulatedModel, batch: int, context: int, measured_ms: float
) -> None:
    engine = Roofline(model, H800, costs=VLLM_ON_H100)
    assert 1e3 * engine.decode_s(batch, batch * context) == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.parametrize(
    ("model", "tokens_s"), [(QWEN3_8B, 39_700), (QWEN3_14B, 22_500), (QWEN3_32B, 9_650)]
)
def test_costs_of_vllm_give_the_prefill_that_was_measured_on_an_h100(
    model: SimulatedModel, tokens_s: float
) -> None:
    engine = Roofline(model, H800, costs=VLLM_ON_H100)
    assert 8_192 / engine.prefill_s(8_192, 256) == pytest.approx(tokens_s, rel=0.1)


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
    assert Scenarios(fitted(START)).software().costs["H800"] == VLLM_ON_H100


def test_the_stored_fit_is_within_the_bounds_of_its_knobs() -> None:
    assert stored_fit().costs["H800"].sequences <= KNOBS["sequences"].high


def test_a_fit_comes_nearer_to_what_it_is_fitted_to() -> None:
    family, oracle, seen = FAMILIES[0], Oracle(jobs=1), published()
    (key,) = family.keys
    values = fit_family(family, START, oracle)
    before, after = (oracle.predict(v, [key])[key] for v in (START, values))
    assert abs(after - seen[key].value) < abs(before - seen[key].value)
    assert after == pytest.approx(seen[key].value, rel=0.1)
    assert {n: v for n, v in values.items() if n not in family.knobs} == {
        n: v for n, v in START.items() if n not in family.knobs
    }


def test_a_slowdown_never_agrees_with_a_speedup() -> None:
    case = Case(ONE_POOL, sync_plus(), steps=2)
    speedup = Figure("name", case, case, (1.05, 1.2))
    assert speedup.agrees(1.01)
    assert not speedup.agrees(0.99)
    assert Figure("name", case, case, (0.9, 0.9)).agrees(0.95)
    assert not Figure("name", case, case, (0.9, 0.9)).agrees(1.0)


def test_several_seeds_have_a_mean_and_an_interval() -> None:
    assert estimate([2.0]).low == estimate([2.0]).high == 2.0
    of_three = estimate([1.0, 2.0, 3.0])
    assert of_three.mean == 2.0
    assert of_three.high - of_three.mean == pytest.approx(4.303 / 3**0.5)
