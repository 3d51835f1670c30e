"""Recomputed logprobs are those of transformers, under the sampling that was stored."""

from dataclasses import replace

import pyarrow as pa
import pytest
import torch

from rollart_flow.errors import TrainerError
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.trainers.batch.training_batch import read_batch, read_scorable
from rollart_flow.trainers.step.scoring import recompute_logprobs, score
from rollart_flow.types import Sampling
from tests.trainers.cases import (
    CONFIG,
    VOCABULARY,
    Row,
    initial_weights,
    make_rows,
    reference_entropy,
    reference_logprobs,
    reference_model,
    table,
)

SAMPLINGS = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.7),
    "allowed": Sampling(allowed_token_ids=(2, 5, 6, 30)),
    "top_k": Sampling(temperature=1.3, top_k=4),
    "allowed and top_p": Sampling(top_p=0.9, allowed_token_ids=tuple(range(3, 20))),
}


def ours() -> Qwen3:
    model = Qwen3(CONFIG)
    model.load_state_dict(initial_weights())
    return model


def mixed_rows() -> list[Row]:
    """Rows of every sampling in one batch, interleaved."""
    sets = [make_rows(4, seed, sampling=s) for seed, s in enumerate(SAMPLINGS.values())]
    return [row for rows in zip(*sets, strict=True) for row in rows]


@pytest.mark.parametrize("micro_batch_tokens", [1, 100, 100_000])
def test_logprobs_equal_those_of_transformers(micro_batch_tokens: int) -> None:
    rows = mixed_rows()
    found = recompute_logprobs(ours(), read_scorable(table(rows)), micro_batch_tokens)
    model = reference_model(initial_weights())
    with torch.no_grad():
        for row, logprobs in zip(rows, found, strict=True):
            expected = reference_logprobs(model, row)
            torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=1e-5)


def test_entropies_and_their_gradient_equal_the_reference() -> None:
    rows = mixed_rows()
    batch = read_batch(table(rows))
    model, reference = ours(), reference_model(initial_weights())
    micro = batch.micro_batch(torch.arange(len(rows)).numpy(), VOCABULARY)
    entropies = score(model, model(*micro.inputs), micro, entropy_gradient=True).entropies
    expected = torch.cat([reference_entropy(reference, row) for row in rows])
    torch.testing.assert_close(entropies.double(), expected, rtol=0, atol=1e-5)
    entropies.sum().backward()  # type: ignore[no-untyped-call]
    expected.sum().backward()  # type: ignore[no-untyped-call]
    gradients = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            parameter.grad.double(), gradients[name].grad, rtol=1e-3, atol=1e-4
        )


def test_entropy_has_no_gradient_unless_asked() -> None:
    batch = read_batch(table(make_rows(2, 0)))
    model, micro = ours(), batch.micro_batch(torch.arange(2).numpy(), 31)
    assert not score(model, model(*micro.inputs), micro).entropies.requires_grad


GOOD = Row([1, 2, 3, 4], [False, True, False, True], [0.0, -1.0, 0.0, -2.0])
BAD = {
    "greedily": replace(GOOD, sampling=Sampling(temperature=0.0)),
    "no action token": replace(GOOD, action_mask=[False] * 4, advantage=[1.0]),
    "begins with an action": replace(GOOD, action_mask=[True, True, False, True]),
    "outside the vocabulary": replace(GOOD, token_ids=[1, VOCABULARY, 3, 4]),
    "different lengths": replace(GOOD, logprobs=[0.0, -1.0]),
    "one advantage": replace(GOOD, advantage=[1.0, 1.0, 1.0]),
    "needs kept_token_ids": replace(GOOD, sampling=Sampling(top_k=2)),
    "has probability 0": replace(GOOD, sampling=Sampling(allowed_token_ids=(1, 2, 3))),
    "names a token": replace(GOOD, sampling=Sampling(allowed_token_ids=(2, 4, VOCABULARY))),
}


@pytest.mark.parametrize("what", BAD)
def test_a_row_that_cannot_be_scored_is_refused_by_name(what: str) -> None:
    rows = table([GOOD, BAD[what], GOOD])
    with pytest.raises(TrainerError, match=what) as caught:
        recompute_logprobs(ours(), read_batch(rows))
    assert "t1" in str(caught.value) or what == "names a token"
    assert "\n" not in str(caught.value)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(TrainerError, match="empty"):
        read_batch(table([])).check(VOCABULARY)


def test_a_missing_or_wrong_column_is_refused_by_name() -> None:
    rows = table([GOOD])
    with pytest.raises(TrainerError, match="logprobs"):
        read_batch(rows.drop_columns("logprobs"))
    wrong = rows.drop_columns("token_ids").append_column("token_ids", pa.array([["a"]]))
    with pytest.raises(TrainerError, match="token_ids") as caught:
        read_batch(wrong)
    assert "\n" not in str(caught.value)


def test_slices_chunks_and_large_lists_read_the_same() -> None:
    rows = table(mixed_rows())
    pieces = pa.concat_tables([rows.slice(3, 5), rows.slice(8, 2), rows.slice(10)])
    large = pieces.set_column(
        pieces.schema.get_field_index("token_ids"),
        "token_ids",
        pieces["token_ids"].cast(pa.large_list(pa.int32())),
    )
    expected = recompute_logprobs(ours(), read_scorable(rows))[3:]
    for case in (pieces, large, rows.slice(3)):
        found = recompute_logprobs(ours(), read_batch(case))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
