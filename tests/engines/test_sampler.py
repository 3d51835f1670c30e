"""Draws are exact: never a token of probability zero, the same number for the same place."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.engines.sampler import Sampler, cumulate
from rollart_flow.errors import EngineError
from rollart_flow.types import Sampling


def _sampler(*samplings: Sampling, vocabulary: int = 6) -> Sampler:
    sampler = Sampler(rows=len(samplings), vocab_size=vocabulary, seed=0)
    for row, sampling in enumerate(samplings):
        sampler.bind(row, f"request {row}", sampling)
    sampler.select(np.arange(len(samplings)))
    return sampler


@given(
    st.lists(st.floats(-200, 200), min_size=6, max_size=6),
    st.sets(st.integers(0, 5), min_size=1),
    st.integers(0, 10_000),
)
def test_only_tokens_of_some_probability_are_drawn(
    logits: list[float], allowed: set[int], position: int
) -> None:
    sampler = _sampler(Sampling(allowed_token_ids=tuple(allowed)))
    tokens, logprobs, _ = sampler.sample(torch.tensor([logits]), np.array([position]))
    assert int(tokens[0]) in allowed
    rest = torch.tensor([logits[token] for token in sorted(allowed)]).log_softmax(-1)
    wanted = rest[sorted(allowed).index(int(tokens[0]))]
    assert logprobs[0] == pytest.approx(float(wanted), abs=1e-5)
    assert logprobs[0] > -80


def test_rows_of_every_kind_share_a_batch() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).repeat(4, 1)
    sampler = _sampler(
        Sampling(),
        Sampling(temperature=0.0, top_k=2),
        Sampling(top_k=2, temperature=2.0),
        Sampling(allowed_token_ids=(1,)),
    )
    tokens, logprobs, kept = sampler.sample(logits, np.arange(4))
    assert kept == {2: (4, 5)}
    assert (int(tokens[1]), int(tokens[3])) == (5, 1)
    assert int(tokens[2]) in (4, 5)
    plain = logits[0].log_softmax(-1)
    halved = torch.tensor([2.0, 2.5]).log_softmax(-1)
    wanted = [plain.tolist()[tokens[0]], float(plain[5]), halved.tolist()[tokens[2] - 4], 0.0]
    assert logprobs.tolist() == pytest.approx(wanted, abs=1e-6)


def test_a_row_forgets_the_restriction_of_its_last_request() -> None:
    sampler = _sampler(Sampling(allowed_token_ids=(1,)), Sampling(allowed_token_ids=(2,)))
    sampler.bind(0, "next", Sampling(temperature=0.0))
    sampler.select(np.arange(2))
    tokens, _, _ = sampler.sample(torch.tensor([[0.0, 0, 0, 9, 0, 0]] * 2), np.arange(2))
    assert tokens.tolist() == [3, 2]


def test_the_same_place_draws_the_same_token_in_any_order() -> None:
    sampler = _sampler(*[Sampling()] * 50)
    logits = torch.zeros(50, 6)
    positions = np.arange(50) % 7
    forward = sampler.sample(logits, positions)[0]
    sampler.select(np.arange(50)[::-1].copy())
    backward = sampler.sample(logits, positions[::-1].copy())[0]
    assert forward.tolist() == backward[::-1].tolist()
    sampler.select(np.arange(50))
    assert sampler.sample(logits, positions + 1)[0].tolist() != forward.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(EngineError, match="not finite"):
        _sampler(Sampling()).sample(torch.tensor([[0.0, value, 0, 0, 0, 0]]), np.array([3]))


def test_sums_in_whole_numbers_do_not_depend_on_their_order_and_skip_what_is_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 5000, generator=generator) * 4
    logits[:, ::3] = float("-inf")
    probabilities = logits.softmax(-1)
    whole, mass = cumulate(probabilities, whole=True)
    plain, _ = cumulate(probabilities, whole=False)
    assert torch.equal(whole[:, -1], cumulate(probabilities.flip(-1), whole=True)[0][:, -1])
    assert (whole.diff(dim=-1)[:, 2::3] == 0).all(), "a token of probability zero adds nothing"
    assert (whole.double() * 2.0**-48 - plain).abs().max() < 1e-11
    assert torch.isfinite(mass).all()
    uniforms = torch.rand(20, 1, dtype=torch.float64, generator=generator)
    for cumulative in (whole, plain):
        below = (uniforms * cumulative[:, -1:]).to(cumulative.dtype)
        drawn = torch.searchsorted(cumulative, below, right=True)
        assert (probabilities.gather(-1, drawn) > 0).all()
    below = (uniforms * whole[:, -1:]).long()
    assert torch.equal(drawn, torch.searchsorted(whole, below, right=True)), "the same draws"
