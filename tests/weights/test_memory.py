"""Memory is used again, but never while a tensor uses it."""

import torch

from rollart_flow.weights import fingerprint
from rollart_flow.weights.memory import ReusedMemory
from tests.weights.conformance import tensors_of


def test_memory_is_used_again_once_no_tensor_of_it_is_alive() -> None:
    registered, forgotten = list[tuple[int, int]](), list[int]()
    memory = ReusedMemory(lambda *place: registered.append(place), forgotten.append)
    first = memory.take(100)
    place, view = first.data_ptr(), first[10:20]
    del first
    second = memory.take(50)
    assert second.data_ptr() != place, "a view of it is alive"
    assert registered == [(place, 100), (second.data_ptr(), 50)]
    assert forgotten == [place]
    place = second.data_ptr()
    del second, view
    assert memory.take(40).data_ptr() == place
    assert memory.take(60).numel() == 60
    assert len(registered) == 3


def test_copies_are_the_tensors_and_share_nothing_with_them() -> None:
    memory, tensors = ReusedMemory(), tensors_of(3)
    tensors["turned"] = torch.arange(6.0).reshape(2, 3).T
    tensors["grad"] = torch.ones(3, requires_grad=True)
    before = fingerprint(tensors)
    first = memory.copies(tensors)
    tensors["model.scale"].fill_(9.0)
    second = memory.copies(tensors)
    assert fingerprint(first) == before
    assert fingerprint(second) == fingerprint(tensors) != before
    assert not second["grad"].requires_grad
    place = second["model.ids"].data_ptr()
    del second
    assert memory.copies(tensors)["model.ids"].data_ptr() == place
