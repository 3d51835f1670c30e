"""Tensors as one run of bytes, cut into buckets of a fixed size, and back.

The tensors lie in order of their names, each at a multiple of 64 bytes. The invariant: unpacking
gives exactly the tensors that were packed, or raises.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 64 << 20
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a bucket has to be."""

    size: int
    crc32: int


def packed_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes of all buckets together."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors.values())


def pack(tensors: Mapping[str, torch.Tensor], staging: torch.Tensor) -> Iterator[Bucket]:
    """Fill the buffer with one bucket after the other; it is the caller's until the next one.

    Args:
        tensors: anywhere, of any layout.
        staging: of bytes; its length, a multiple of 64, is that of all buckets but the last.
    """
    filled, room = 0, staging.numel()
    for name in sorted(tensors):
        flat = _bytes_of(tensors[name])
        taken = 0
        while taken < flat.numel():
            count = min(room - filled, flat.numel() - taken)
            staging[filled : filled + count] = flat[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == room:
                yield _bucket(staging, filled)
                filled = 0
        padding = -flat.numel() % ALIGN
        staging[filled : filled + padding] = 0
        filled += padding
        if filled == room:
            yield _bucket(staging, filled)
            filled = 0
    if filled:
        yield _bucket(staging, filled)


def unpack(
    entries: Sequence[TensorEntry],
    buckets: Sequence[Bucket],
    fetch: Callable[[int, int], torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The tensors, in memory of their own.

    Args:
        entries: in order of their names.
        buckets: what was packed.
        fetch: bytes of a bucket, by its number and size; they are copied before the next call.

    Raises:
        WeightsError: a bucket is damaged, or the bytes are not those of the tensors.
    """
    import torch

    whole = torch.empty(sum(bucket.size for bucket in buckets), dtype=torch.uint8)
    begin = 0
    for number, bucket in enumerate(buckets):
        part = fetch(number, bucket.size)
        if zlib.crc32(part.numpy().data) != bucket.crc32:
            raise WeightsError(f"bucket {number} is damaged: its checksum differs")
        whole[begin : begin + bucket.size] = part
        begin += bucket.size
    tensors, begin = {}, 0
    for entry in entries:
        dtype = getattr(torch, entry.dtype)
        shape = torch.Size(entry.shape)
        size = shape.numel() * dtype.itemsize
        flat = whole[begin : begin + size]
        if flat.numel() != size:
            raise WeightsError(f"tensor {entry.name} lies outside the buckets")
        tensors[entry.name] = flat.view(dtype).reshape(shape)
        begin += _aligned(size)
    return tensors


def encode_manifest(manifest: Manifest, buckets: Sequence[Bucket]) -> bytes:
    """What is stored of a version beside its buckets."""
    pairs = [(bucket.size, bucket.crc32) for bucket in buckets]
    return json.dumps({**asdict(manifest), "buckets": pairs}).encode()


def decode_manifest(stored: bytes) -> tuple[Manifest, tuple[Bucket, ...]]:
    """Manifest and buckets.

    Raises:
        WeightsError: it is none.
    """
    try:
        raw = json.loads(stored)
        buckets = tuple(Bucket(int(size), int(crc)) for size, crc in raw.pop("buckets"))
        entries = tuple(
            TensorEntry(e["name"], e["dtype"], tuple(e["shape"])) for e in raw.pop("tensors")
        )
        return Manifest(tensors=entries, **raw), buckets
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"its manifest cannot be read: {error}") from error


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _bucket(staging: torch.Tensor, size: int) -> Bucket:
    return Bucket(size, zlib.crc32(staging[:size].numpy().data))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
