"""Chains in one packed row are computed as each of them by itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rollart_flow.models.feed_forward import Experts
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers.batch.training_batch import read_batch
from tests.trainers.cases import CONFIG, VOCABULARY, Row, make_rows, table

EXPERTS = Experts(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
ROWS = make_rows(12, seed=3)


def model_of(config: ModelConfig) -> Qwen3:
    model = Qwen3(config)
    model.initialize(0)
    return model


def wanted_states(model: Qwen3, rows: list[Row], *, packed: bool) -> torch.Tensor:
    """The hidden states that predict the action tokens of all rows."""
    batch = read_batch(table(rows), packed=packed)
    micro = batch.micro_batch(np.arange(len(rows)), VOCABULARY)
    assert (micro.packing is not None) is packed
    states: torch.Tensor = model(*micro.inputs)
    return states


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, experts=EXPERTS)], ids=["dense", "mixture"]
)
def test_states_and_gradients_are_those_of_padded_rows(config: ModelConfig) -> None:
    packed, padded = model_of(config), model_of(config)
    found, expected = (
        wanted_states(packed, ROWS, packed=True),
        wanted_states(padded, ROWS, packed=False),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for states in (found, expected):
        states.square().mean().backward()  # type: ignore[no-untyped-call]
    for (name, one), other in zip(packed.named_parameters(), padded.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)


def test_a_common_prefix_is_computed_once_with_the_gradient_of_all_its_chains() -> None:
    """Rows that branch, one that is the beginning of another, and equal ones."""
    stem = ROWS[0]
    rows = [stem, *(joined(stem, at, row) for at, row in enumerate(ROWS[1:6], 3)), stem, ROWS[7]]
    rows += [joined(rows[2], len(rows[2].token_ids), ROWS[8])]
    batch = read_batch(table(rows))
    micro = batch.micro_batch(np.arange(len(rows)), VOCABULARY)
    prefixes = {
        tuple(row.token_ids[: at + 1])
        for row, used in zip(rows, batch.used_lengths, strict=True)
        for at in range(used)
    }
    assert micro.token_ids.numel() == len(prefixes) < batch.used_lengths.sum()
    packed, padded = model_of(CONFIG), model_of(CONFIG)
    found = wanted_states(packed, rows, packed=True)
    expected = wanted_states(padded, rows, packed=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    for states in (found, expected):
        (states * weights).mean().backward()  # type: ignore[no-untyped-call]
    for (name, one), other in zip(packed.named_parameters(), padded.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)


def joined(stem: Row, at: int, row: Row) -> Row:
    """The first tokens of one row, then all of another, whose advantages are those of the whole."""
    return replace(
        row,
        token_ids=[*stem.token_ids[:at], *row.token_ids],
        action_mask=[*stem.action_mask[:at], *row.action_mask],
        logprobs=[*stem.logprobs[:at], *row.logprobs],
        advantage=[1.0],
    )


def test_no_chain_sees_another() -> None:
    model = model_of(CONFIG)
    others = make_rows(12, seed=4)
    alone = wanted_states(model, [ROWS[0]], packed=True)
    for place in (0, 5, 11):
        rows = [*others[:place], ROWS[0], *others[place + 1 :]]
        before = sum(len(row.actions) for row in rows[:place])
        found = wanted_states(model, rows, packed=True)[before : before + len(alone)]
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


def test_every_state_is_returned_unless_some_are_wanted() -> None:
    model = model_of(CONFIG)
    micro = read_batch(table(ROWS)).micro_batch(np.arange(len(ROWS)), VOCABULARY)
    every = model(micro.token_ids, None, micro.packing)
    assert every.shape == (micro.token_ids.numel(), CONFIG.hidden_size)
    torch.testing.assert_close(every[micro.predictors], model(*micro.inputs), rtol=0, atol=1e-5)
