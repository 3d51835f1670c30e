"""Tensors as one run of bytes, cut into buckets of a fixed size, and back.

The tensors lie in order of their names, each at a multiple of 64 bytes. The invariant: unpacking
gives exactly the tensors that were packed, or raises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import cycle
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, TensorEntry
from rollart_flow.weights.fingerprint import Fingerprint

if TYPE_CHECKING:
    import torch

BUCKET_BYTES = 32 << 20
"""Read within a lease also where a link gives a few MiB/s."""
ALIGN = 64


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


def unpack(
    published: Manifest, whole: torch.Tensor, arrivals: Iterator[int]
) -> dict[str, torch.Tensor]:
    """The tensors, which lie in `whole`; their checksum is taken while the rest still arrives.

    Args:
        published: what was packed.
        whole: of bytes; all buckets, one after the other.
        arrivals: how many bytes more are there, each time that some have come.

    Raises:
        WeightsError: the bytes are not those of the tensors.
    """
    import torch

    tensors, begin, arrived, digest = {}, 0, 0, Fingerprint()
    for entry in published.tensors:
        dtype = getattr(torch, entry.dtype)
        end = begin + _nbytes(entry)
        digest.begin(entry.name, entry.dtype, entry.shape)
        hashed = begin
        while hashed < end:
            if hashed == arrived:
                arrived += next(arrivals)
            until = min(end, arrived)
            digest.update(whole[hashed:until])
            hashed = until
        tensors[entry.name] = whole[begin:end].view(dtype).reshape(entry.shape)
        begin = _aligned(end)
    if digest.hexdigest() != published.checksum:
        raise WeightsError("they are damaged: their checksum differs; publish the version again")
    return tensors


def encode_manifest(manifest: Manifest, bucket_bytes: int) -> bytes:
    """What is stored of a version beside its buckets."""
    return json.dumps({**asdict(manifest), "bucket_bytes": bucket_bytes}).encode()


def decode_manifest(stored: bytes) -> tuple[Manifest, int]:
    """The manifest, and bytes of all buckets but the last.

    Raises:
        WeightsError: it is none.
    """
    try:
        raw = json.loads(stored)
        bucket_bytes = int(raw.pop("bucket_bytes"))
        return Manifest.from_json(raw), bucket_bytes
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
