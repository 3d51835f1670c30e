"""Every recipe through the real trainer: what it learns does not depend on how rows are cut."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
import torch

from rollart_flow.algorithms import (
    Algorithm,
    cispo,
    dapo,
    decoupled_ppo,
    double_sided,
    dr_grpo,
    grpo,
    gspo,
    icepop,
    ipa,
    kimi,
    opsm,
    reinforce_plus_plus,
    rloo,
    tis,
    tis_loss,
    topr,
)
from rollart_flow.models.qwen3 import Qwen3
from rollart_flow.trainers.batch.training_batch import read_batch, read_scorable
from rollart_flow.trainers.step.kernels import pinned
from rollart_flow.trainers.step.scoring import recompute_logprobs, recompute_old_logprobs
from rollart_flow.trainers.step.update import Tally, Updater
from tests.trainers.cases import CONFIG, completed, initial_weights, make_rows, table

COUNT = 12

RECIPES: list[Algorithm] = [
    cispo(mask=True),
    dapo(),
    decoupled_ppo(),
    decoupled_ppo(proximal="interpolated"),
    double_sided(max_lag=1),
    dr_grpo(constant_tokens=8),
    grpo(correction=icepop()),
    grpo(correction=tis()),
    grpo(dual=3.0, entropy=0.1),
    gspo(clip=0.1, clip_high=0.1),
    ipa(high=1.5),
    kimi(),
    reinforce_plus_plus(),
    rloo(correction=opsm(0.01)),
    tis_loss(),
    topr(ratio_to="old"),
]


def near(factor: float) -> Qwen3:
    """A policy near the one that is trained."""
    model = Qwen3(CONFIG)
    model.load_state_dict({name: t * factor for name, t in initial_weights().items()})
    return model


def batch_of_rows() -> pa.Table:
    """Rows that a policy near the trained one drew, some of them with older tokens than others."""
    rows = make_rows(COUNT, seed=6, longest=14)
    drawn = recompute_logprobs(near(0.97), read_scorable(table(rows)))
    for row, logprobs in zip(rows, drawn, strict=True):
        for at, logprob in zip(row.actions, logprobs.tolist(), strict=True):
            row.logprobs[at] = logprob
    return completed(rows, seed=6)


def gradient(
    whole: pa.Table, algorithm: Algorithm, order: Sequence[int], micro_batch_tokens: int
) -> torch.Tensor:
    """Gradient of an update that is not the first: pi_old is another policy."""
    weights = near(1.0)
    batch = read_batch(whole.take(list(order)), algorithm)
    with pinned(threads=1):
        start = recompute_old_logprobs(near(1.02), batch, micro_batch_tokens)
        updater = Updater(weights, algorithm, None, micro_batch_tokens)
        updater.accumulate(batch, np.arange(batch.rows), 1.0, Tally(), start)
    return torch.cat([p.grad.flatten() for p in weights.parameters() if p.grad is not None])


@pytest.mark.parametrize("algorithm", RECIPES, ids=lambda algorithm: str(algorithm.name))
def test_padding_packing_and_order_change_nothing_but_rounding(algorithm: Algorithm) -> None:
    whole = batch_of_rows()
    together = gradient(whole, algorithm, range(COUNT), 5000)
    largest = float(together.abs().max())
    assert largest > 0
    backwards = range(COUNT - 1, -1, -1)
    for order, micro_batch_tokens in ((range(COUNT), 60), (backwards, 1)):
        found = gradient(whole, algorithm, order, micro_batch_tokens)
        assert float((found - together).abs().max()) < 1e-4 * largest


@pytest.mark.parametrize("algorithm", RECIPES, ids=lambda algorithm: str(algorithm.name))
def test_ranks_that_each_take_some_trajectories_add_up(algorithm: Algorithm) -> None:
    """Each rank sees its rows alone; the sum of what they accumulate is the whole."""
    whole = batch_of_rows()
    together, parts = gradient(whole, algorithm, range(COUNT), 200), torch.zeros(())
    actions = read_batch(whole).actions.lengths
    for first in (0, 1):
        rows = range(first, COUNT, 2)
        share = float(actions[list(rows)].sum() / actions.sum())
        parts = parts + share * gradient(whole, algorithm, rows, 200)
    assert float((parts - together).abs().max()) < 1e-4 * float(together.abs().max())
