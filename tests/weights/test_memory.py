"""Memory is used again, but never while a tensor uses it."""

import threading

import torch

from rollart_flow.weights import fingerprint
from rollart_flow.weights.memory import ReusedMemory, WeightSnapshot
from tests.weights.conformance import assert_is_version, tensors_of


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


def test_a_snapshot_that_is_taken_first_is_not_copied_again() -> None:
    tensors, memory = tensors_of(3), ReusedMemory()
    snapshot = WeightSnapshot(tensors, memory)
    copies = snapshot.take()
    place = copies["model.ids"].data_ptr()
    snapshot.settle()
    tensors["model.ids"].fill_(9)
    assert_is_version(dict(copies), 3)
    del copies
    assert memory.copies(tensors)["model.ids"].data_ptr() == place, "nobody else holds a copy"


def test_a_snapshot_that_is_settled_first_has_the_tensors_before_their_change() -> None:
    tensors = tensors_of(3)
    snapshot = WeightSnapshot(tensors, ReusedMemory())
    snapshot.settle()
    snapshot.settle()
    for tensor in tensors.values():
        tensor.fill_(9)
    assert_is_version(dict(snapshot.take()), 3)


def test_tensors_may_change_only_after_the_copies_that_are_being_made() -> None:
    tensors, began, go = tensors_of(3), threading.Event(), threading.Event()

    class SlowMemory(ReusedMemory):
        def take(self, size: int) -> torch.Tensor:
            began.set()
            assert go.wait(30)
            return super().take(size)

    snapshot, taken = WeightSnapshot(tensors, SlowMemory()), list[dict[str, torch.Tensor]]()
    thread = threading.Thread(target=lambda: taken.append(dict(snapshot.take())))
    thread.start()
    assert began.wait(30)
    settled = threading.Thread(target=snapshot.settle)
    settled.start()
    assert settled.is_alive()
    go.set()
    settled.join()
    tensors["model.ids"].fill_(9)
    thread.join()
    assert_is_version(taken[0], 3)
