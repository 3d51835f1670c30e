"""Profiler: which class suits which domain, by what their requests take there."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.control.inference.affinity_stats import GenerationSpan, Seen
from rollart_flow.control.inference.profiler import (
    ENOUGH,
    EVERY,
    EXPLORED,
    PATIENCE,
    Profiler,
    choose,
    makespan,
)
from rollart_flow.types import EventKind
from tests.dst.log import EventLog

PREFILL_S = {"H800": 0.02e-3, "H20": 0.15e-3}
DECODE_S = {"H800": 9e-3, "H20": 7.5e-3}
WORK = {"lake": (1_500, 20), "math": (200, 800)}
"""(new tokens, generated tokens) of a request."""
WORKERS = ("H800", "H800", "H20", "H20")
PAPER = {"lake": "H800", "math": "H20"}
"""ROLLART section 7.3: prefill-heavy domains to compute, decode-heavy ones to bandwidth."""


def seen(
    domain: str,
    hardware: str,
    chance: Random,
    *,
    prefilled: int = 0,
    slower: float = 1.0,
    work: tuple[int, int] | None = None,
) -> Seen:
    """A generation; `prefilled` tokens of others come first in each of its parts."""
    asked, drawn = work or WORK[domain]
    new, tokens = round(asked * chance.uniform(0.5, 1.5)), round(drawn * chance.uniform(0.5, 1.5))

    def span(passes: int, tokens: int) -> GenerationSpan:
        seconds = passes * DECODE_S[hardware] + tokens * PREFILL_S[hardware]
        return GenerationSpan(passes, tokens, seconds * slower * chance.uniform(0.95, 1.05))

    others = prefilled * tokens // 100
    spans = span(1, new + prefilled), span(tokens - 1, others)
    return Seen(domain, hardware, new, tokens, spans)


def learn(profiler: Profiler, rounds: int, chance: Random, prefilled: int = 0) -> None:
    """Trajectories of both domains, each served where it is placed, or anywhere."""
    for _ in range(rounds):
        for domain in WORK:
            hardware = profiler.place(domain) or chance.choice(sorted(set(WORKERS)))
            profiler.observe(seen(domain, hardware, chance, prefilled=prefilled))


def a_profiler(log: EventLog | None = None) -> Profiler:
    profiler = Profiler(log or EventLog())
    profiler.resize(WORKERS)
    return profiler


def test_the_mapping_of_the_paper_is_found() -> None:
    log = EventLog()
    profiler = a_profiler(log)
    learn(profiler, 200, Random(1))
    assert profiler.mapping == PAPER
    bound = log.of(EventKind.AFFINITY)
    assert {event.subject: event.detail["hardware"] for event in bound} == PAPER
    assert all(event.detail["before"] is None for event in bound)


def test_rates_are_those_of_the_hardware_also_where_others_are_prefilled_meanwhile() -> None:
    profiler = a_profiler()
    chance = Random(2)
    for hardware in DECODE_S:
        for i in range(200):
            profiler.observe(seen("math", hardware, chance, prefilled=500 * (i % 7)))
        profile = profiler.profile("math", hardware)
        assert profile is not None
        assert profile.prefill_s == pytest.approx(PREFILL_S[hardware], rel=0.1)
        assert profile.decode_s == pytest.approx(DECODE_S[hardware], rel=0.1)
        assert profile.requests == 200
    assert profiler.profile("lake", "H20") is None


def test_until_every_pair_was_seen_often_enough_all_go_anywhere() -> None:
    profiler = a_profiler()
    chance = Random(3)
    for _ in range(10 * EVERY):
        for domain in WORK:
            assert profiler.place(domain) is None
        profiler.observe(seen("lake", chance.choice(WORKERS), chance))
        profiler.observe(seen("math", "H20", chance))
    assert profiler.mapping == {}, "math was never seen on an H800"


def test_two_clients_that_see_the_same_workload_agree() -> None:
    clients = [a_profiler(), a_profiler()]
    for seed, client in enumerate(clients):
        learn(client, 200, Random(seed), prefilled=300 * seed)
    assert clients[0].mapping == clients[1].mapping == PAPER


def test_a_mapping_stays_whatever_chance_and_load_do() -> None:
    log = EventLog()
    profiler = a_profiler(log)
    chance = Random(4)
    learn(profiler, 200, chance)
    for _ in range(3_000):
        for domain in WORK:
            hardware = profiler.place(domain)
            assert hardware is not None
            crowded = 2.0 if hardware == "H20" else 1.0
            profiler.observe(seen(domain, hardware, chance, slower=crowded))
    assert len(log.of(EventKind.AFFINITY)) == len(PAPER)


def test_a_domain_whose_requests_change_is_bound_anew() -> None:
    log = EventLog()
    profiler = a_profiler(log)
    chance = Random(5)
    learn(profiler, 200, chance)
    turned = {"lake": WORK["math"], "math": WORK["lake"]}
    for _ in range(5_000):
        for domain in WORK:
            hardware = profiler.place(domain)
            assert hardware is not None
            profiler.observe(seen(domain, hardware, chance, work=turned[domain]))
    assert profiler.mapping == {"lake": "H20", "math": "H800"}
    assert len(log.of(EventKind.AFFINITY)) == 2 * len(PAPER), "each once more"


def test_one_preference_changes_nothing() -> None:
    profiler = a_profiler()
    chance = Random(6)
    learn(profiler, 200, chance)
    turned = {"lake": WORK["math"], "math": WORK["lake"]}
    for _ in range(PATIENCE * EVERY // 2 - 1):
        for domain in WORK:
            profiler.observe(seen(domain, PAPER[domain], chance, work=turned[domain]))
    assert profiler.mapping == PAPER


def test_a_class_that_joins_is_explored_with_a_small_share() -> None:
    profiler = a_profiler()
    learn(profiler, 200, Random(7))
    profiler.resize((*WORKERS, "L20"))
    placed = [profiler.place("math") for _ in range(10 * EXPLORED)]
    assert placed.count("L20") == 10
    assert placed.count("H20") == len(placed) - 10
    assert profiler.wanted("math") == "H20"


def test_a_class_that_is_gone_is_left_at_once() -> None:
    profiler = a_profiler()
    learn(profiler, 200, Random(8))
    profiler.resize(("H800", "H800"))
    assert (profiler.wanted("lake"), profiler.wanted("math")) == ("H800", None)


def test_where_all_workers_are_alike_nobody_is_bound() -> None:
    profiler = Profiler(EventLog())
    profiler.resize(("H20", "H20"))
    for _ in range(ENOUGH * EVERY):
        profiler.observe(seen("math", "H20", Random(9)))
    assert profiler.mapping == {}


LOADS = st.lists(st.floats(0.1, 10), min_size=12, max_size=12)


@given(LOADS, st.lists(st.integers(1, 8), min_size=3, max_size=3))
def test_no_mapping_has_a_smaller_makespan_than_the_chosen_one(
    seconds: list[float], counts: list[int]
) -> None:
    domains, workers = "abcd", dict(zip("xyz", counts, strict=True))
    load = dict(zip(itertools.product(domains, workers), seconds, strict=True))
    chosen = makespan(load, workers, choose(load, workers))
    every = itertools.product(workers, repeat=len(domains))
    spans = [makespan(load, workers, dict(zip(domains, each, strict=True))) for each in every]
    assert chosen == pytest.approx(min(spans))


def test_what_is_fixed_stays_and_the_rest_is_chosen_around_it() -> None:
    load = {("a", "x"): 1.0, ("a", "y"): 9.0, ("b", "x"): 5.0, ("b", "y"): 5.5}
    assert choose(load, {"x": 1, "y": 1}) == {"a": "x", "b": "y"}
    assert choose(load, {"x": 1, "y": 1}, {"a": "y"}) == {"a": "y", "b": "x"}
