"""Device memory of a trainer that others use meanwhile."""

import torch

from rollart_flow.algorithms import grpo
from rollart_flow.trainers import adamw
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.offload import HostCopies
from tests.trainers.cases import CONFIG, initial_weights, make_rows, table


def test_a_tensor_keeps_its_identity_and_its_bits_while_its_memory_is_free() -> None:
    tensor, copies = torch.arange(12.0).reshape(3, 4).T, HostCopies()
    view, stride = tensor[1], tensor.stride()
    assert copies.take([tensor, view]) == 48, "memory that two tensors share counts once"
    assert tensor.untyped_storage().nbytes() == 0
    copies.restore()
    assert (tensor.stride(), tensor[1].data_ptr()) == (stride, view.data_ptr())
    assert tensor.equal(torch.arange(12.0).reshape(3, 4).T)


def test_memory_that_numpy_shares_stays() -> None:
    tensor, copies = torch.arange(3.0), HostCopies()
    shared = tensor.numpy()
    assert copies.take([tensor]) == 0
    assert shared.tolist() == tensor.tolist() == [0.0, 1.0, 2.0]


def test_a_trainer_frees_weights_moments_and_the_reference_policy() -> None:
    settings = RankSettings(optimizer=adamw(1e-2))
    weights = initial_weights()
    size = sum(tensor.nbytes for tensor in weights.values())
    plain = EmbeddedTrainer(CONFIG, weights, grpo(), settings)
    assert plain.offload() == size
    plain.reload()
    plain.train_step(1, table(make_rows(4, seed=1)))
    counters = 4 * len(weights)
    assert plain.offload() == 2 * size + counters, "numpy has read the weights, the moments not"
    beside_reference = EmbeddedTrainer(CONFIG, weights, grpo(kl=0.1), settings)
    assert beside_reference.offload() == size, "numpy has copied the weights for the reference"
