"""Branches that share prefixes: every prefix is computed once, and nothing else changes."""

from functools import partial

import numpy as np
import pytest
import torch

from rollart_flow.algorithms import grpo
from rollart_flow.trainers.batch.passes import packs, passes, tree_packs
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch
from rollart_flow.trainers.step.update import Tally, Updater
from tests.trainers.cases import initial_weights, model_of
from tests.trainers.step.test_update import Gradient, assert_close
from tests.trainers.trees import branched_table, tree

BRANCHES = [2, 4, 8, 16]


def prefixes(batch: TrainingBatch, rows: list[int]) -> int:
    """Number of distinct prefixes of the tokens that are needed of some rows."""
    chains = [batch.tokens.values[batch.tokens.starts[row] :] for row in rows]
    pairs = zip(chains, batch.used_lengths[rows].tolist(), strict=True)
    return len({tuple(chain[:end]) for chain, most in pairs for end in range(1, most + 1)})


def gradient_of(batch: TrainingBatch, micro_batch_tokens: int) -> tuple[float, Gradient]:
    model, tally = model_of(initial_weights()), Tally()
    updater = Updater(model, grpo(), None, micro_batch_tokens)
    updater.accumulate(batch, np.arange(batch.rows), 1.0, tally)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return tally.loss, found


@pytest.mark.parametrize("branches", BRANCHES)
def test_every_prefix_of_a_tree_is_computed_once(branches: int) -> None:
    batch = read_batch(branched_table([tree(branches, seed=branches)]))
    micro = batch.micro_batch(np.arange(batch.rows), 32)
    assert micro.token_ids.shape == (1, prefixes(batch, list(range(batch.rows))))
    assert micro.token_ids.shape[1] < batch.used_lengths.sum()


@pytest.mark.parametrize("branches", BRANCHES)
def test_loss_and_gradient_of_a_tree_are_those_of_its_rows_alone(branches: int) -> None:
    prompt = [3, 1, 4, 1, 5]
    rows = branched_table([tree(branches, seed, prompt) for seed in range(3)])
    loss, gradient = gradient_of(read_batch(rows), 4096)
    alone, expected = gradient_of(read_batch(rows, packed=False), 1)
    assert loss == pytest.approx(alone, rel=1e-5, abs=1e-7)
    assert_close(gradient, expected, 1e-5)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 100])
def test_cut_into_passes_a_batch_of_trees_gives_the_same(micro_batch_tokens: int) -> None:
    batch = read_batch(branched_table([tree(8, seed) for seed in range(3)]))
    loss, gradient = gradient_of(batch, 4096)
    cut, found = gradient_of(batch, micro_batch_tokens)
    assert cut == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert_close(found, gradient, 1e-5)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_rows_are_cut_where_they_share_least_and_by_distinct_tokens(replicas: int) -> None:
    batch = read_batch(branched_table([tree(8, seed) for seed in range(4)]))
    every, lengths = np.arange(batch.rows), batch.used_lengths
    cut = tree_packs(batch.tokens, lengths, every, 60, replicas)
    parts = [part.tolist() for parts in cut for part in parts]
    assert sorted(row for part in parts for row in part) == every.tolist()
    sizes = [prefixes(batch, part) for part in parts]
    assert all(size <= 60 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    by_length = [prefixes(batch, part.tolist()) for part in packs(lengths, 60)]
    if replicas == 1:
        assert sum(sizes) < sum(by_length)
    made = partial(passes, lengths, every, 60, packed=True, trees=batch.trees)
    found = [made(replica=replica, replicas=replicas) for replica in range(replicas)]
    assert len({each.count for each in found}) == 1
    assert [part.tolist() for each in found for part in each.own] == parts


def test_an_episode_is_in_one_minibatch() -> None:
    batch = read_batch(branched_table([tree(1 + seed % 3, seed) for seed in range(9)]))
    generator = torch.Generator().manual_seed(0)
    parts = batch.minibatches(3, generator)
    assert sorted(np.concatenate(parts).tolist()) == list(range(batch.rows))
    owners = [set(batch.episodes[part].tolist()) for part in parts]
    assert [len(owned) for owned in owners] == [3, 3, 3] == [batch.count(part) for part in parts]
    assert len(set.union(*owners)) == 9


def test_rows_that_are_an_episode_each_are_cut_and_shuffled_as_before() -> None:
    rows = branched_table([tree(1, seed) for seed in range(9)])
    batch, older = read_batch(rows), read_batch(rows.drop_columns(["branch"]))
    assert batch.trees is None
    parts = [each.minibatches(2, torch.Generator().manual_seed(0)) for each in (batch, older)]
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0)).numpy()
    for found in parts:
        assert [p.tolist() for p in found] == [p.tolist() for p in np.array_split(order, 2)]
