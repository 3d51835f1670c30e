"""The imitation loss that a format warm start uses."""

import pyarrow as pa
import torch

from rollart_flow.algorithms.base import Tokens
from rollart_flow.algorithms.supervised import supervised


def test_it_is_the_negative_log_likelihood() -> None:
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    found = supervised().token_loss(Tokens(logprobs, torch.zeros(2), torch.ones(2)))
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(found.loss, -logprobs)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, -1.0]
    assert not found.clipped.any()


def test_every_trajectory_counts_whatever_its_reward() -> None:
    found = supervised().advantages(pa.table({"reward": [0.0, None, 7.0]}))
    assert [value.tolist() for value in found.values] == [[1.0]] * 3
    assert not supervised().needs_reference
