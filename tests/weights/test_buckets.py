"""A version as one safetensors file, in buckets."""

from itertools import cycle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rollart_flow.errors import WeightsError
from rollart_flow.weights import fingerprint
from rollart_flow.weights.base import entries_of
from rollart_flow.weights.buckets import (
    ArrivingFingerprint,
    BucketLayout,
    layout_of,
    pack,
    parts,
    pull,
    save_tensors,
    tensors_in,
)
from rollart_flow.weights.following import Following

TENSORS = {
    "b": torch.arange(12.0).reshape(3, 4),
    "a": torch.ones(5, dtype=torch.bfloat16),
    "z": torch.arange(3),
    "flag": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5),
    "none": torch.zeros(0, 4),
    "turned": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
}


def packed() -> tuple[BucketLayout, torch.Tensor]:
    layout = layout_of(entries_of(TENSORS))
    whole = bytearray(b"".join(parts(TENSORS, layout)))
    return layout, torch.frombuffer(whole, dtype=torch.uint8)


def test_the_bytes_are_a_safetensors_file() -> None:
    layout, whole = packed()
    assert whole.numel() == layout.size
    loaded = safetensors.torch.load(whole.numpy().tobytes())
    assert fingerprint(loaded) == fingerprint(TENSORS)


def test_what_is_unpacked_is_what_was_packed() -> None:
    layout, whole = packed()
    assert fingerprint(tensors_in(layout, whole)) == fingerprint(TENSORS)


@pytest.mark.parametrize("size", [1, 5, 64, 1000])
def test_pieces_of_any_size_fill_buffers_in_turn(size: int) -> None:
    pieces = [memoryview(bytes([number]) * number) for number in range(1, 12)]
    buffers = [memoryview(bytearray(size)) for _ in range(2)]
    packed = [bytes(bucket) for bucket in pack(pieces, cycle(buffers))]
    assert b"".join(packed) == b"".join(pieces)
    assert {len(bucket) for bucket in packed[:-1]} <= {size}


def test_a_file_is_written_whatever_the_tensors_share(tmp_path: Path) -> None:
    shared = {**TENSORS, "again": TENSORS["b"], "column": TENSORS["b"][:, 1]}
    save_tensors(shared, tmp_path / "model.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert fingerprint(loaded) == fingerprint(shared)


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_the_fingerprint_is_taken_as_the_bytes_arrive(step: int) -> None:
    layout, whole = packed()
    memory = torch.zeros_like(whole)
    hashed = ArrivingFingerprint(layout, memory)
    for begin in range(0, layout.size, step):
        end = min(begin + step, layout.size)
        memory[begin:end] = whole[begin:end]
        hashed.update(end)
    assert hashed.hexdigest() == fingerprint(TENSORS)


def test_buckets_arrive_in_order_and_a_failure_ends_the_reader() -> None:
    memory, following = torch.zeros(100, dtype=torch.uint8), Following()

    def fetch(number: int, part: torch.Tensor) -> None:
        part.fill_(number)

    arrived = [int(part[0]) for part in pull(memory, 30, fetch, following, at_once=3)]
    assert arrived == [0, 1, 2, 3]
    assert memory[89:91].tolist() == [2, 3]

    def fail(number: int, part: torch.Tensor) -> None:
        if number == 0:
            raise WeightsError("lost")
        following.wait_for(lambda: None, f"bucket {number}")

    with pytest.raises(WeightsError, match="lost"):
        list(pull(memory, 30, fail, following, at_once=2))


def test_a_dtype_that_a_file_cannot_hold_is_refused() -> None:
    with pytest.raises(WeightsError, match="a has dtype complex128, which cannot be published"):
        layout_of(entries_of({"a": torch.zeros(2, dtype=torch.complex128)}))
