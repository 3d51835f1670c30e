"""Ranks that hang are noticed by the others; an error that all share is not taken for that."""

import os
import signal
from collections.abc import Iterator

import pytest

from rollart_flow.algorithms import grpo
from rollart_flow.errors import RanksLostError, SettingsError
from rollart_flow.trainers import adamw
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.ranks import join_at, refuse_shared_gpu
from rollart_flow.trainers.settings import RankSettings
from tests.trainers.cases import CONFIG, initial_weights
from tests.trainers.conformance import batch_of
from tests.trainers.gang import Gang, GangTrainer, gang

TIMEOUT_S = 4.0
SETTINGS = RankSettings(backend="fsdp2", ranks=2, optimizer=adamw(1e-3))


@pytest.fixture
def ranks() -> Iterator[Gang]:
    """Two processes of their own: the test ends one of them."""
    with gang(TIMEOUT_S) as started:
        yield started


def train(trainer: Trainer, step: int) -> StepResult:
    return trainer.train_step(step, batch_of(step))


def fail_alike(trainer: Trainer) -> None:
    """An error of code that every rank runs, of the type that torch raises for anything."""
    from rollart_flow.trainers.ranks import lost_rank

    with lost_rank(trainer._ranks):  # type: ignore[attr-defined]
        raise RuntimeError("gloo is a word in the error of an algorithm")


def test_a_rank_that_hangs_is_noticed_and_an_error_of_all_is_not_taken_for_that(
    ranks: Gang,
) -> None:
    several = GangTrainer(ranks, CONFIG, initial_weights(), grpo(), SETTINGS)
    with pytest.raises(RuntimeError, match="gloo is a word") as caught:
        several.every(fail_alike)
    assert not isinstance(caught.value, RanksLostError)
    assert several.train_step(1, batch_of(1)).step == 1
    os.kill(ranks.pids[1], signal.SIGSTOP)
    try:
        several.begin(train, 2)
        found = ranks.answer(0)
    finally:
        os.kill(ranks.pids[1], signal.SIGKILL)
    assert isinstance(found, RanksLostError)
    assert str(found).startswith("trainer rank 0 lost the others: ")
    assert "\n" not in str(found)


def test_a_rank_that_finds_nobody_says_so() -> None:
    with pytest.raises(RanksLostError, match="trainer rank 1 lost the others"):
        join_at("127.0.0.1:9", 1, 2, timeout_s=1)


def test_two_ranks_on_one_gpu_are_refused_and_ranks_on_cpus_are_not() -> None:
    refuse_shared_gpu(["", "", "a", "b"])
    with pytest.raises(SettingsError, match="ranks 1 and 3 would share one GPU; give each rank"):
        refuse_shared_gpu(["b", "a", "", "a"])
