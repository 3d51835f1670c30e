"""Packing of tensors into one sequence of bytes, cut into buckets of a fixed size, and unpacking.

Tensors are sorted by name, each at a multiple of 64 bytes. Each bucket has an XXH3 digest, which
takes a tenth of the time of its transfer. The digest detects faults, not forgery: any writer to the
store can write arbitrary data there. The invariant:
unpacking gives exactly the tensors that were packed, or raises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, TensorEntry

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 32 << 20
"""Size of a bucket; it can be read within a lease even over a link of a few MiB/s."""
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """The metadata stored for a version in addition to its buckets."""

    manifest: Manifest
    bucket_bytes: int
    """Size of all buckets but the last."""
    digests: tuple[str, ...]
    """Digest of each bucket, in order."""


def packed_bytes(tensors: Iterable[TensorEntry]) -> int:
    """Return the total size of all buckets in bytes."""
    return sum(_aligned(_nbytes(entry)) for entry in tensors)


def pack(
    tensors: Mapping[str, torch.Tensor], staging: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Fill the buffers in turn and yield them; the caller owns a yielded buffer until the next but
    one is yielded.

    Args:
        tensors: tensors on any device and of any layout.
        staging: two or more byte buffers; their length, a multiple of 64, is the size of all
        buckets but the last.
    """
    buffers = cycle(staging)
    buffer, filled = next(buffers), 0
    for part in _parts(tensors):
        taken = 0
        while taken < part.numel():
            count = min(buffer.numel() - filled, part.numel() - taken)
            buffer[filled : filled + count] = part[taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == buffer.numel():
                yield buffer
                buffer, filled = next(buffers), 0
    if filled:
        yield buffer[:filled]


def digest(bucket: torch.Tensor) -> str:
    """Return the digest that detects a damaged bucket; other threads can run meanwhile."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(bucket.numpy().data)


def unpack(
    packed: Packed, whole: torch.Tensor, arrivals: Iterable[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors as views of `whole`; received buckets are checked while the rest arrives.

    Args:
        packed: metadata of the packed version.
        whole: byte buffer of all buckets, one after the other.
        arrivals: the buckets in order, as they arrive.

    Raises:
        WeightsError: the bytes differ from the packed ones.
    """
    import torch

    for expected, bucket in zip(packed.digests, arrivals, strict=True):
        if digest(bucket) != expected:
            raise WeightsError(
                "they are damaged: their checksum differs; publish the version again"
            )
    tensors, begin = {}, 0
    for entry in packed.manifest.tensors:
        end = begin + _nbytes(entry)
        flat = whole[begin:end].view(getattr(torch, entry.dtype))
        tensors[entry.name] = flat.reshape(entry.shape)
        begin = _aligned(end)
    return tensors


def encode_packed(packed: Packed) -> bytes:
    """Encode the metadata for storage."""
    said = {"bucket_bytes": packed.bucket_bytes, "digests": packed.digests}
    return json.dumps({**asdict(packed.manifest), **said}).encode()


def decode_packed(stored: bytes) -> Packed:
    """Decode stored metadata.

    Raises:
        WeightsError: the bytes are not metadata of a version.
    """
    try:
        raw = json.loads(stored)
        bucket_bytes, digests = int(raw.pop("bucket_bytes")), tuple(raw.pop("digests"))
        return Packed(Manifest.from_json(raw), bucket_bytes, digests)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"its manifest cannot be read: {error}") from error


def _parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the bytes of the tensors in order, each followed by padding."""
    import torch

    for name in sorted(tensors):
        flat = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield flat
        yield torch.zeros(-flat.numel() % ALIGN, dtype=torch.uint8)


def _nbytes(entry: TensorEntry) -> int:
    import torch

    dtype: torch.dtype = getattr(torch, entry.dtype)
    return math.prod(entry.shape) * dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
