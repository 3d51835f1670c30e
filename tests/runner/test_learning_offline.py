"""A fresh policy learns the demo's domains from the successes of an early run, offline."""

from pathlib import Path

import pytest

from tests.benchmarks.bench_offline import GOAL, STEPS, learn_offline, steps_of, success


@pytest.mark.whole
def test_it_solves_both_domains_better_than_the_run_that_it_learned_from(tmp_path: Path) -> None:
    source, learned = learn_offline(str(tmp_path))
    found = success(learned, steps_of(learned))
    assert min(found.values()) >= GOAL, found
    assert max(success(learned, 0).values()) < 0.2
    assert all(found[domain] > value for domain, value in success(source, STEPS).items())
