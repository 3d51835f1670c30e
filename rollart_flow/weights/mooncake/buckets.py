"""Tensors as one run of bytes, cut into buckets of a fixed size, and back.

The tensors lie in order of their names, each at a multiple of 64 bytes. A bucket has a digest of
its own, XXH3, which takes a tenth of the time of its transfer: it is against faults, not against
forgery, and whoever may write to the store may write anything there anyway. The invariant:
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
"""Read within a lease also where a link gives a few MiB/s."""
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """What is stored of a version beside its buckets."""

    manifest: Manifest
    bucket_bytes: int
    """Of all but the last one."""
    digests: tuple[str, ...]
    """Of each bucket, in order."""


def packed_bytes(tensors: Iterable[TensorEntry]) -> int:
    """Bytes of all buckets together."""
    return sum(_aligned(_nbytes(entry)) for entry in tensors)


def pack(
    tensors: Mapping[str, torch.Tensor], staging: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Fill the buffers in turn; what is yielded is the caller's until the next but one comes.

    Args:
        tensors: anywhere, of any layout.
        staging: two or more of bytes; their length, a multiple of 64, is that of all buckets but
            the last.
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
    """What tells a bucket from a damaged one; other threads run meanwhile."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(bucket.numpy().data)


def unpack(
    packed: Packed, whole: torch.Tensor, arrivals: Iterable[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors, which lie in `whole`; what has come is checked while the rest arrives.

    Args:
        packed: what was packed.
        whole: of bytes; all buckets, one after the other.
        arrivals: the buckets in order, as they come.

    Raises:
        WeightsError: the bytes are not those that were packed.
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
    """As it is stored."""
    said = {"bucket_bytes": packed.bucket_bytes, "digests": packed.digests}
    return json.dumps({**asdict(packed.manifest), **said}).encode()


def decode_packed(stored: bytes) -> Packed:
    """What was stored.

    Raises:
        WeightsError: it is something else.
    """
    try:
        raw = json.loads(stored)
        bucket_bytes, digests = int(raw.pop("bucket_bytes")), tuple(raw.pop("digests"))
        return Packed(Manifest.from_json(raw), bucket_bytes, digests)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"its manifest cannot be read: {error}") from error


def _parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """Bytes of the tensors in order, each padded."""
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
