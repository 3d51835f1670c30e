"""How far engine and trainer are apart: measured exactly, found when planted, corrected by tis."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import Algorithm, decoupled_ppo, grpo, kimi, tis
from rollart_flow.algorithms.advantages import GroupNormalized
from rollart_flow.algorithms.losses import Vanilla
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.base import LagStatistics, StepResult
from rollart_flow.trainers.batch.training_batch import read_batch, read_scorable
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import pinned
from rollart_flow.trainers.step.mismatch import measure
from rollart_flow.trainers.step.scoring import OldPolicy, recompute_logprobs
from rollart_flow.trainers.step.update import Tally, Updater
from tests.trainers.cases import (
    CONFIG,
    Row,
    completed,
    initial_weights,
    make_rows,
    model_of,
    on_policy,
    table,
)

WHOLE = RankSettings(optimizer=adamw(1e-2), micro_batch_tokens=100)
CUT = replace(WHOLE, minibatches=3, epochs=2)


def step(
    rows: list[Row], settings: RankSettings = WHOLE, algorithm: Algorithm | None = None
) -> StepResult:
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), algorithm or grpo(), settings)
    return trainer.train_step(1, completed(rows))


def shifted(rows: list[Row], by: float) -> list[Row]:
    """An engine whose logprobs are off by a noise of this size, as a fixed function of the row."""
    return [
        replace(row, logprobs=[
            logprob + by * math.sin(7 * at + number) if acted else 0.0
            for at, (logprob, acted) in enumerate(zip(row.logprobs, row.action_mask, strict=True))
        ])
        for number, row in enumerate(rows)
    ]  # fmt: skip


def test_statistics_are_those_of_the_formulas() -> None:
    old = np.array([-1.0, -2.0, -0.5, -3.0, -1.5], dtype=np.float32)
    mu = np.array([-1.2, -1.0, -0.5, -2.5, -2.5], dtype=np.float32)
    lags = np.array([0, 0, 2, 2, 0])
    found = measure(old, mu, lags)
    weights = {0: [math.exp(0.2), math.exp(-1.0), math.exp(1.0)], 2: [1.0, math.exp(-0.5)]}

    def by_hand(lag: int) -> LagStatistics:
        w = weights[lag]
        kl = sum(x - 1 - math.log(x) for x in w) / len(w)
        ess = sum(w) ** 2 / (len(w) * sum(x * x for x in w))
        return LagStatistics(lag, len(w), sum(w) / len(w), kl, ess)

    assert found.lags is not None
    for statistics, expected in zip(found.lags, [by_hand(0), by_hand(2)], strict=True):
        for name in ("lag", "tokens", "ratio_mean", "kl", "ess"):
            wanted = pytest.approx(getattr(expected, name), rel=1e-6)
            assert getattr(statistics, name) == wanted, name
    assert found.mismatch_kl == pytest.approx(by_hand(0).kl, rel=1e-6)
    assert found.ess == pytest.approx(by_hand(0).ess, rel=1e-6)
    assert found.mismatch_ratio_max == pytest.approx(math.exp(1.0), rel=1e-6)


def test_without_a_fresh_token_all_of_them_count() -> None:
    old, mu = np.array([-1.0, -2.0], dtype=np.float32), np.array([-1.5, -2.0], dtype=np.float32)
    stale = measure(old, mu, np.array([1, 2]))
    unknown = measure(old, mu, None)
    assert stale.mismatch_kl == unknown.mismatch_kl > 0
    assert stale.ess == unknown.ess
    assert stale.lags is not None
    assert [each.lag for each in stale.lags] == [1, 2]
    assert unknown.lags is None


def test_an_impossible_logprob_still_gives_numbers() -> None:
    found = measure(np.array([-1.0, -1.0]), np.array([-1e30, -1.0]), None)
    assert all(math.isfinite(x) for x in (found.mismatch_kl, found.mismatch_ratio_max, found.ess))
    assert found.ess == pytest.approx(0.5)


def test_an_exact_engine_shows_none_and_a_shifted_one_is_found() -> None:
    exact = on_policy(make_rows(10, seed=3), initial_weights())
    clean = step(exact)
    assert clean.mismatch_kl == pytest.approx(0.0, abs=1e-9)
    assert clean.ess == pytest.approx(1.0, abs=1e-6)
    assert clean.mismatch_ratio_max == pytest.approx(1.0, abs=1e-4)
    assert clean.lags is not None
    assert sum(each.tokens for each in clean.lags) == clean.action_tokens
    found = step(shifted(exact, by=0.5))
    assert found.mismatch_kl is not None
    assert found.ess is not None
    assert found.mismatch_ratio_max is not None
    assert found.mismatch_kl == pytest.approx(0.0625, rel=0.4), "half the mean square of the shift"
    assert found.ess < 0.95
    assert found.mismatch_ratio_max == pytest.approx(math.exp(0.5), rel=0.05)


def test_one_minibatch_knows_it_for_free_and_several_where_it_is_needed() -> None:
    rows = shifted(on_policy(make_rows(10, seed=3), initial_weights()), by=0.5)
    free = step(rows)
    assert step(rows, CUT).mismatch_kl is None
    assert step(rows, CUT).lags is None
    for settings, algorithm in (
        (replace(CUT, mismatch=True), grpo()),
        (CUT, grpo(correction=tis())),
        (CUT, kimi()),
        (replace(WHOLE, epochs=3), grpo()),
    ):
        found = step(rows, settings, algorithm)
        assert found.mismatch_kl == pytest.approx(free.mismatch_kl, rel=1e-4)
        assert found.ess == pytest.approx(free.ess, rel=1e-5)


@pytest.mark.parametrize("settings", [WHOLE, CUT], ids=["whole", "cut"])
def test_logprobs_that_are_kept_are_those_before_the_step(settings: RankSettings) -> None:
    batch = completed(make_rows(10, seed=3))
    keeping = replace(settings, keep_logprobs=True)
    trainer = EmbeddedTrainer(CONFIG, initial_weights(), grpo(), keeping)
    before = trainer.recompute_old_logprobs(batch)["old_logprobs"].to_pylist()
    trained = trainer.train_step(1, batch)
    kept = trainer.step_logprobs
    assert kept is not None
    for own, old in zip(kept["logprobs"].to_pylist(), before, strict=True):
        assert own == pytest.approx(old, abs=1e-5)
    assert trained.fingerprint == step(make_rows(10, seed=3), settings).fingerprint
    trainer.skip_step(2, batch, "a batch that cannot be trained on")
    assert trainer.step_logprobs is None


def test_measuring_changes_no_weights() -> None:
    rows = make_rows(10, seed=3)
    assert step(rows, CUT).fingerprint == step(rows, replace(CUT, mismatch=True)).fingerprint


@pytest.mark.parametrize("settings", [CUT, replace(WHOLE, epochs=3)], ids=["minibatches", "epochs"])
def test_pi_old_stays_the_start_of_the_step_in_all_of_its_updates(
    settings: RankSettings,
) -> None:
    """Against a step whose stored logprobs are the recomputed ones: the pair is then rho itself."""
    rows = on_policy(make_rows(10, seed=3), initial_weights())
    pair = step(rows, settings, grpo(ratio_to="old"))
    single = step(rows, settings, grpo())
    assert pair.loss == pytest.approx(single.loss, abs=1e-5)
    assert pair.ratio_mean == pytest.approx(single.ratio_mean, rel=1e-4)
    assert pair.clip_fraction == pytest.approx(single.clip_fraction, abs=0.02)
    assert pair.ratio_max > 1.05, "later updates see a ratio other than 1"
    assert pair.grad_norm == pytest.approx(single.grad_norm, rel=1e-2)


def test_the_first_update_of_a_pair_is_not_inert() -> None:
    """The trap of public code: with pi_old = sg[pi_theta] the weight must still correct."""
    rows = shifted(make_rows(10, seed=3), by=1.0)
    plain, pair = step(rows, WHOLE, grpo()), step(rows, WHOLE, grpo(ratio_to="old"))
    assert pair.ratio_mean == pytest.approx(1.0, abs=1e-6)
    assert pair.ratio_max == pytest.approx(1.0, abs=1e-6)
    assert pair.clip_fraction == 0.0
    wide = step(rows, WHOLE, grpo(clip=1.0, clip_high=1e9))
    assert pair.grad_norm == pytest.approx(wide.grad_norm, rel=1e-3), "once, in full"
    assert plain.grad_norm != pytest.approx(pair.grad_norm, rel=1e-3)


def test_tis_takes_back_most_of_what_a_biased_engine_does_to_the_gradient() -> None:
    """The engine draws from other weights than it should; pi_old is what the trainer holds."""
    truth, biased = initial_weights(), initial_weights()
    biased["model.embed_tokens.weight"] = biased["model.embed_tokens.weight"] * 1.3
    vanilla = Algorithm("plain", Vanilla(), GroupNormalized())
    corrected = Algorithm("plain", Vanilla(), GroupNormalized(), correction=tis(cap=5.0))

    def expectation(drawn_from: dict[str, torch.Tensor], algorithm: Algorithm) -> torch.Tensor:
        """Expected gradient over every next token of a prompt, each drawn with its probability."""
        chains = [Row([3, 9, 4, token], [False] * 3 + [True], [0.0] * 4) for token in range(31)]
        drawn = recompute_logprobs(model_of(drawn_from), read_scorable(table(chains)))
        rows = [
            replace(
                row,
                logprobs=[0.0, 0.0, 0.0, float(logprob)],
                advantage=[math.sin(3.0 * at)],
                weight=float(logprob.exp()),
            )
            for at, (row, logprob) in enumerate(zip(chains, drawn, strict=True))
        ]
        batch, model = read_batch(table(rows)), model_of(truth)
        updater = Updater(model, algorithm, None, 4096)
        with pinned(threads=1):
            updater.accumulate(batch, np.arange(31), 1.0, Tally(), OldPolicy.empty(batch, None))
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    true = expectation(truth, vanilla)
    uncorrected = float((expectation(biased, vanilla) - true).norm())
    left = float((expectation(biased, corrected) - true).norm())
    assert uncorrected > 0.05 * float(true.norm())
    assert left < 0.2 * uncorrected


def test_decoupled_ppo_by_interpolation_needs_no_further_pass() -> None:
    rows = make_rows(10, seed=3)
    assert step(rows, CUT, decoupled_ppo(proximal="interpolated")).mismatch_kl is None
    assert step(rows, CUT, decoupled_ppo()).mismatch_kl is not None
